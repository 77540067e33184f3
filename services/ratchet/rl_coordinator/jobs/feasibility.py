"""Looks whether a request could work at all, before anybody waits for its job to fail.

What cannot be looked up for now (a store is away) is no reason to refuse: the job itself waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ratchet.contract.state import Job
from ratchet.contract.training import DatasetFilter, TrainingRequest
from ratchet.datasets.domain.selection import pending_rewards_note
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Conflict, Rejected, Unavailable
from ratchet.rl_coordinator.jobs.domain.jobs import TERMINAL
from ratchet.rl_coordinator.jobs.domain.requests import continues_stable
from ratchet.rl_coordinator.jobs.references import given_snapshot, require_own_policy
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.triggers.clickhouse_counts import Counts
from ratchet.rules import training_options as training_rules
from ratchet.rules.algorithms import dataset_format
from ratchet.rules.training_options import Amounts
from ratchet.stores.objects import Objects
from ratchet.stores.policies import is_manifest_uri

log = structlog.get_logger()

MAY_COME = frozenset({"registered", "canary", "stable"})
"""Stages of policies that may serve the role when the job starts."""


@dataclass(frozen=True, slots=True)
class Given:
    """Where things lie that a request names."""

    objects: Objects
    snapshots: Snapshots


class Feasibility:
    """One look per question; the first obstacle is the answer."""

    def __init__(
        self, policies: KvPolicies, counts: Counts, given: Given, amounts: Amounts, jobs: Callable[[], list[Job]]
    ) -> None:
        self._policies = policies
        self._counts = counts
        self._given = given
        self._amounts = amounts
        self._jobs = jobs

    async def check(self, request: TrainingRequest) -> None:
        """Raise `Conflict` for what does not work now and `Rejected` for what never will, in one sentence."""
        for look in (self._base_model, self._snapshot, self._data):
            try:
                await look(request)
            except Unavailable as error:
                log.info("not looked up", job=request.training_job_id, reason=str(error))

    async def _base_model(self, request: TrainingRequest) -> None:
        base_model = request.training_config.base_model
        if not continues_stable(base_model):
            await self._require_policy(base_model, request.role)
            return
        found = await self._policies.of(request.role)
        coming = any(policy.stage in MAY_COME for policy in found.versions.values())
        training = any(job.role == request.role and job.state not in TERMINAL for job in self._jobs())
        if found.stable is None and not coming and not training:
            raise Conflict(
                f"role {request.role} has no policy to continue from: name a base_model (a model manifest's uri, a name"
                " or a path)"
            )

    async def _snapshot(self, request: TrainingRequest) -> None:
        config = request.training_config
        snapshot, least = config.dataset.snapshot, self._amounts.least(config.algorithm)
        if snapshot is None:
            return
        manifest = await asyncio.to_thread(given_snapshot, self._given.snapshots, snapshot, request.role)
        if manifest.rows < least:
            rows = f"{manifest.rows} row{'' if manifest.rows == 1 else 's'}"
            raise Rejected(f"dataset.snapshot {snapshot.uri} holds {rows}; {config.algorithm} needs at least {least}")

    async def _data(self, request: TrainingRequest) -> None:
        config, role = request.training_config, request.role
        if config.dataset.snapshot is not None:
            return
        match dataset_format(config.algorithm):
            case training_rules.PAIRS:
                if not await self._counts.preferences(role):
                    raise Conflict(f"role {role} has no stored preference: derive or add some first")
            case training_rules.LABELS:
                _require_both_kinds(role, *await self._counts.thumbs(role))
            case _:
                await self._require_rewarded(role, config.algorithm, config.dataset.filter or DatasetFilter())

    async def _require_rewarded(self, role: str, algorithm: str, chosen: DatasetFilter) -> None:
        least, found = self._amounts.least(algorithm), await self._counts.rewarded(role, chosen)
        if not found.stored:
            raise Conflict(f"role {role} has no stored trajectory with a reward{pending_rewards_note(found.waiting)}")
        if not found.matching:
            none = f"none of {found.stored} rewarded trajectories of role {role} passes dataset.filter"
            raise Conflict(f"{none}{pending_rewards_note(found.waiting)}")
        if found.matching < least:
            few = f"{found.matching} of {found.stored} rewarded trajectories of role {role} can be chosen"
            raise Conflict(f"{few}; {algorithm} needs at least {least}{pending_rewards_note(found.waiting)}")

    async def _require_policy(self, uri: str, role: str) -> None:
        if is_manifest_uri(uri):
            await asyncio.to_thread(require_own_policy, self._given.objects, uri, role)
        elif uri.startswith("s3://") and not await asyncio.to_thread(self._given.objects.exists, uri):
            raise Rejected(f"base_model {uri} does not exist")


def _require_both_kinds(role: str, up: int, down: int) -> None:
    if not up + down:
        raise Conflict(f"role {role} has no stored thumb")
    if not (up and down):
        kind = "up" if up else "down"
        raise Conflict(f"all {up + down} thumbs of role {role} are {kind}: there is nothing to tell apart")
