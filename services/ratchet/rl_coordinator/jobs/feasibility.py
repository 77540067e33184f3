"""Whether a request can work at all, so that its caller need not wait for the job to fail.

A question that has no answer now (a store is away) is no reason to refuse: the job itself waits for the store.
"""

from __future__ import annotations

import asyncio

import structlog

from ratchet.core.contract import snapshot as formats
from ratchet.core.contract.policy_manifest import ADAPTER
from ratchet.core.contract.state import ENDED, Job
from ratchet.core.contract.training import DatasetFilter, SnapshotRef, TrainingConfig, TrainingRequest
from ratchet.core.datasets.domain.human_share import HUMAN, most_pairs
from ratchet.core.datasets.domain.selection import most_generations, pending_rewards_note
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import Conflict, DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.core.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.core.rules.training_options import Amounts
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import BlobStore, is_manifest_uri, read_policy
from ratchet.rl_coordinator.jobs.clickhouse_counts import Counts
from ratchet.rl_coordinator.jobs.exporter import own_snapshot, parent_of
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry import KvPolicies, continues_stable

log = structlog.get_logger()

MAY_COME = frozenset({"registered", "canary", "stable"})
"""Stages of policies that may serve the role when the job starts."""


class Feasibility:
    """Asks the stores; the first obstacle is the answer."""

    def __init__(
        self,
        *,
        policies: KvPolicies,
        counts: Counts,
        objects: Objects,
        snapshots: Snapshots,
        amounts: Amounts,
        store: KvJobs,
    ) -> None:
        self._policies = policies
        self._counts = counts
        self._objects = objects
        self._snapshots = snapshots
        self._amounts = amounts
        self._store = store

    async def require_feasible(self, request: TrainingRequest) -> None:
        """Raise `Conflict` for what does not work now and `Rejected` for what never will, in one sentence."""
        for require in (self._require_base_model, self._require_data):
            try:
                await require(request.training_config, request.role)
            except Unavailable as error:
                log.info("not looked up", job=request.training_job_id, reason=str(error))

    async def lost_checkpoint(self, job: Job) -> list[str]:
        """A sentence about a checkpoint that the object store lacks: the sweep takes those that nothing needs."""
        checkpoint = job.artifacts.checkpoint if job.artifacts else None
        try:
            if checkpoint is None or await asyncio.to_thread(self._objects.exists, checkpoint):
                return []
        except Unavailable as error:
            log.info("not looked up", job=job.training_job_id, reason=str(error))
            return []
        return [f"its checkpoint {checkpoint} is gone"]

    async def _require_base_model(self, config: TrainingConfig, role: str) -> None:
        base_model = config.base_model
        if is_manifest_uri(base_model):
            await asyncio.to_thread(require_own_policy, self._objects, base_model, role)
        elif base_model.startswith("s3://"):
            if not await asyncio.to_thread(self._objects.exists, base_model):
                raise Rejected(f"base_model {base_model} does not exist")
        elif continues_stable(base_model):
            policies = await self._policies.policies_of(role)
            coming = any(policy.stage in MAY_COME for policy in policies.versions.values())
            training = any(job.role == role and job.state not in ENDED for job in self._store.all_jobs())
            if policies.stable is None and not coming and not training:
                raise Conflict(
                    f"role {role} has no policy to continue from: name a base_model (a model manifest's uri, a name or"
                    " a path)"
                )

    async def _require_data(self, config: TrainingConfig, role: str) -> None:
        if config.dataset.snapshot is not None:
            await self._require_snapshot(config, config.dataset.snapshot, role)
            return
        match dataset_format(config.algorithm):
            case formats.PAIRS:
                await self._require_pairs(config, role)
            case formats.LABELS:
                up, down = await self._counts.thumbs(role)
                if not up + down:
                    raise Conflict(f"role {role} has no stored thumb")
                if not (up and down):
                    kind = "up" if up else "down"
                    raise Conflict(f"all {up + down} thumbs of role {role} are {kind}: there is nothing to tell apart")
            case _:
                await self._require_rewarded(config, role)

    async def _require_snapshot(self, config: TrainingConfig, snapshot: SnapshotRef, role: str) -> None:
        least = self._least(config)
        manifest = await asyncio.to_thread(own_snapshot, self._snapshots, snapshot, role, config.algorithm)
        if manifest.rows < least:
            rows = f"{manifest.rows} row{'' if manifest.rows == 1 else 's'}"
            raise Rejected(f"dataset.snapshot {snapshot.uri} holds {rows}; {config.algorithm} needs at least {least}")

    async def _require_pairs(self, config: TrainingConfig, role: str) -> None:
        """Counted before any filter but the share of people: what a filter leaves out can only make them fewer."""
        by_source, share = (
            await self._counts.preferences(role),
            (config.dataset.filter or DatasetFilter()).min_human_share,
        )
        stored, people = sum(by_source.values()), by_source.get(HUMAN, 0)
        if not stored:
            raise Conflict(f"role {role} has no stored preference: derive or add some first")
        most, least = most_pairs(people, stored - people, share or 0.0), self._least(config)
        if most < max(1, least):
            mixed = f", {people} of people: with min_human_share {share:g} at most {most} can be taken" if share else ""
            needs = f"; {config.algorithm} needs at least {least} here"
            raise Conflict(f"role {role} has {stored} stored preferences{mixed}{needs}")

    async def _require_rewarded(self, config: TrainingConfig, role: str) -> None:
        """Counted by the filter, staleness included. An even share of domains takes all of what is not too much."""
        algorithm, least, chosen = config.algorithm, self._least(config), config.dataset.filter or DatasetFilter()
        counts = await self._counts.rewarded(role, chosen, await self._stale(config, role))
        waiting = pending_rewards_note(counts.waiting)
        if not counts.stored:
            raise Conflict(f"role {role} has no stored trajectory with a reward{waiting}")
        if not counts.matching:
            none = f"none of {counts.stored} rewarded trajectories of role {role} passes dataset.filter"
            raise Conflict(f"{none}{waiting}")
        if counts.matching < least:
            few = f"{counts.matching} of {counts.stored} rewarded trajectories of role {role} can be chosen"
            raise Conflict(f"{few}; {algorithm} needs at least {least}{waiting}")

    async def _stale(self, config: TrainingConfig, role: str) -> list[int]:
        """Versions whose answers are too many generations away from the policy that would be trained."""
        needs_calls = ALGORITHMS[config.algorithm].needs_token_ids
        limit = most_generations(config.dataset.filter or DatasetFilter(), needs_calls=needs_calls)
        if limit is None:
            return []
        policies = await self._policies.policies_of(role)
        away = policies.generations(parent_of(policies, config.base_model))
        return [version for version, generations in away.items() if generations > limit]

    def _least(self, config: TrainingConfig) -> int:
        return max(self._amounts.least(config.algorithm), config.dataset.min_rows or 0)


def require_own_policy(objects: BlobStore, uri: str, role: str) -> None:
    """Raise `Rejected` unless the manifest at `uri` is a model, which any role may start from, or the role's adapter.

    An adapter of another role would serve what that role learned. Blocking: run it in a thread.
    """
    try:
        manifest = read_policy(objects, uri).manifest
    except NotFound as error:
        raise Rejected(f"base_model {uri} does not exist") from error
    except DigestMismatch as error:
        raise Rejected(f"base_model: {error}") from error
    if manifest.kind == ADAPTER and manifest.role != role:
        raise Rejected(f"base_model {uri} is an adapter of role {manifest.role}, not of {role}")
