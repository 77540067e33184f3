"""Prepares a queued job for its dispatch: exports its data and resolves its base model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from ratchet.core.contract.http.jobs import PreviewOut
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import TrainingRequest
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.exporter import Export, Exporter
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry import KvPolicies


class Preparer:
    """Makes requests in which no name means something else tomorrow."""

    def __init__(self, *, store: KvJobs, policies: KvPolicies, exporter: Exporter, now: Callable[[], datetime]) -> None:
        self._store = store
        self._policies = policies
        self._exporter = exporter
        self._now = now

    async def preview(self, request: TrainingRequest) -> PreviewOut:
        """The data that a job for `request` would be handed over with at this moment. Raises `Rejected`."""
        return await self._exporter.preview(request, await self._policies.policies_of(request.role))

    async def build(self, request: TrainingRequest) -> Export:
        """Store that data as a snapshot, for later jobs to name. Raises `Rejected`."""
        return await self._exporter.build(request, await self._policies.policies_of(request.role))

    async def prepare(self, job: Job) -> None:
        """Store the job with its data exported. Raises `Rejected` and the like where it has none."""
        policies = await self._policies.policies_of(job.role)
        config = job.request.training_config
        start = policies.starting_point(config.base_model)
        export = await self._exporter.export(job, policies, start.parent)
        dataset = replace(config.dataset, snapshot=export.snapshot)
        resolved = replace(config, base_model=start.base_model, dataset=dataset)

        def prepared(current: Job) -> Job:
            if current.state != JobState.QUEUED:
                return current
            return jobs.prepare(
                current,
                replace(job.request, training_config=resolved),
                snapshot=export.snapshot,
                parent=start.parent,
                trajectories=export.rows,
                now=self._now(),
            )

        await self._store.change_job(job.training_job_id, prepared)
