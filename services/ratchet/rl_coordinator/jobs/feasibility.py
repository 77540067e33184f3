"""Whether a request can work at all, so that its caller need not wait for the job to fail.

A question that has no answer now (a store is away) is no reason to refuse: the job itself waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from ratchet.core.contract.policy_manifest import ADAPTER
from ratchet.core.contract.state import ENDED, Job
from ratchet.core.contract.training import TrainingRequest
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import Conflict, DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.core.evaluation.search_models import search_prices
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import Amounts, holdout_of
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import BlobStore, is_manifest_uri, read_policy
from ratchet.rl_coordinator.jobs.domain.requests import as_asked
from ratchet.rl_coordinator.jobs.exporter import Exporter, own_snapshot, ramp_refusal, starting_point
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry import KvPolicies, continues_stable

log = structlog.get_logger()

MAY_COME = frozenset({"registered", "canary", "stable"})
"""Stages of policies that may serve the role when the job starts."""


@dataclass(frozen=True)
class Feasibility:
    """Asks the stores; the first obstacle is the answer."""

    policies: KvPolicies
    exporter: Exporter
    objects: Objects
    snapshots: Snapshots
    amounts: Amounts
    store: KvJobs
    gateway: AsyncApiClient | None = None
    """None: the worker of a search is the first to ask it."""

    async def require_feasible(self, request: TrainingRequest) -> list[str]:
        """What of the job its caller should know before it starts.

        Raises `Conflict` for what does not work now and `Rejected` for what never will, in one sentence.
        """
        findings: list[str] = []
        steps = (self._require_base_model, self._require_tasks, self._require_models, self._require_data)
        for require in steps:
            try:
                findings += await require(request) or ()
            except Unavailable as error:
                log.info("not looked up", job=request.training_job_id, reason=str(error))
        return [*findings, *self._twins(request)]

    def _twins(self, request: TrainingRequest) -> Iterator[str]:
        """A sentence about jobs that learn the same: what one of them has learnt, the other does not begin with."""
        asked, role = request.training_config, request.role
        for job in self.store.all_jobs():
            config = as_asked(job.request).training_config
            same = (config.algorithm, config.dataset) == (asked.algorithm, asked.dataset)
            if job.role == role and job.state not in ENDED and same:
                yield (
                    f"Job {job.training_job_id} of {role} is {job.state} and asks for the same data and algorithm:"
                    " neither begins with what the other learns."
                )
                return

    async def lost_checkpoint(self, job: Job) -> list[str]:
        """A sentence about a checkpoint that the object store lacks: the sweep takes those that nothing needs."""
        checkpoint = job.artifacts.checkpoint if job.artifacts else None
        try:
            if checkpoint is None or await asyncio.to_thread(self.objects.exists, checkpoint):
                return []
        except Unavailable as error:
            log.info("not looked up", job=job.training_job_id, reason=str(error))
            return []
        return [f"its checkpoint {checkpoint} is gone"]

    async def _require_base_model(self, request: TrainingRequest) -> None:
        config, role = request.training_config, request.role
        base_model, algorithm = config.base_model, ALGORITHMS[config.algorithm]
        if algorithm.writes_bundle or (algorithm.makes_planner and not is_manifest_uri(base_model)):
            return  # where nothing serves, it begins with calls as agents send them, or with version 0 of planners
        if is_manifest_uri(base_model):
            await asyncio.to_thread(require_own_policy, self.objects, base_model, role)
        elif base_model.startswith("s3://"):
            if not await asyncio.to_thread(self.objects.exists, base_model):
                raise Rejected(f"base_model {base_model} does not exist")
        elif continues_stable(base_model):
            policies = await self.policies.policies_of(role)
            coming = any(policy.stage in MAY_COME for policy in policies.versions.values())
            training = any(job.role == role and job.state not in ENDED for job in self.store.all_jobs())
            if policies.stable is None and not coming and not training:
                raise Conflict(
                    f"role {role} has no policy to continue from: name its base_model (`--base-model`), a model"
                    " manifest's uri, a name or a path"
                )

    async def _require_tasks(self, request: TrainingRequest) -> None:
        if (search := request.training_config.prompts) is not None:
            await self.exporter.tasks.sets_of(request.role, search)

    async def _require_models(self, request: TrainingRequest) -> None:
        """A search's models are there, and what they cost is known where its budget needs that."""
        config, role = request.training_config, request.role
        if config.prompts is not None and self.gateway is not None:
            start = starting_point(await self.policies.policies_of(role), config)
            await search_prices(self.gateway, config.prompts, role, start.parent or role)

    async def _require_data(self, request: TrainingRequest) -> list[str]:
        """Choose the data as the job would, without making its rows."""
        config, role, holdout = request.training_config, request.role, holdout_of(request.evaluation)
        snapshot = config.dataset.snapshot
        if snapshot is not None:
            least = self.amounts.least(config.algorithm, config.dataset.min_rows)
            manifest = await asyncio.to_thread(own_snapshot, self.snapshots, snapshot, role, config.algorithm)
            if manifest.rows < least:
                rows = f"{manifest.rows} row{'' if manifest.rows == 1 else 's'}"
                raise Rejected(
                    f"dataset.snapshot {snapshot.uri} holds {rows}; {config.algorithm} needs at least {least}"
                )
            if problem := ramp_refusal(config, manifest.rows, holdout):
                raise Rejected(problem)
            return []
        try:
            return await self.exporter.require_data(role, config, holdout)
        except Rejected as error:
            raise Conflict(str(error)) from error


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
        raise Rejected(f"base_model {uri} is an adapter of another role, not of {role}")
