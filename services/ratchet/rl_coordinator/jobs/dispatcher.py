"""Gives free slots to queued jobs: export their data, resolve their base model, hand them over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.contract.http.jobs import PreviewOut
from ratchet.contract.state import Job, JobState
from ratchet.contract.training import TrainingError, TrainingRequest
from ratchet.errors import DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.schedule import next_up
from ratchet.rl_coordinator.jobs.exporter import Export, Exporter
from ratchet.rl_coordinator.jobs.handlers import House
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.reconciler import Keeper
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.registry.lineage import starting_point

log = structlog.get_logger()


class Dispatcher:
    """One tick hands over every job that has a slot. The data is exported at the last moment, so that it is fresh."""

    def __init__(
        self,
        store: KvJobs,
        policies: KvPolicies,
        exporter: Exporter,
        keeper: Keeper,
        house: House,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._policies = policies
        self._exporter = exporter
        self._keeper = keeper
        self._house = house
        self._now = now

    async def tick(self) -> None:
        """Fill the free slots."""
        waiting = next_up(self._store.all(), self._house.slots, ageing_s=self._house.ageing_s, now=self._now())
        for job in waiting:
            await self._start(job)

    async def preview(self, request: TrainingRequest) -> PreviewOut:
        """The data that a job for `request` would be handed over with at this moment. Raises `Rejected`."""
        return await self._exporter.preview(request, await self._policies.of(request.role))

    async def _start(self, job: Job) -> None:
        """Prepare and hand over one job; one that cannot be prepared fails, and the others go on."""
        try:
            prepared = job if job.snapshot is not None else await self._prepare(job)
        except Unavailable as error:
            log.warning("cannot prepare the job yet", job=job.training_job_id, reason=str(error))
        except (Rejected, NotFound, DigestMismatch) as error:
            await self._fail(job, TrainingError(code="DATA", message=str(error)))
        except Exception as error:  # one job's data must not stop the other jobs
            log.exception("preparing failed", job=job.training_job_id)
            await self._fail(job, TrainingError(code="UNKNOWN", message=f"preparing the data failed: {error!r}"))
        else:
            await self._hand_over(prepared)

    async def _prepare(self, job: Job) -> Job:
        policies = await self._policies.of(job.role)
        start = starting_point(job.request.training_config.base_model, policies.stable, policies.versions)
        export = await self._exporter.export(job, policies, start.parent)
        resolved = _resolved(job.request, start.base_model, export)

        def prepare(current: Job) -> Job:
            if current.state != JobState.QUEUED:
                return current
            return jobs.prepare(
                current,
                resolved,
                snapshot=export.snapshot,
                parent=start.parent,
                trajectories=export.trajectories,
                now=self._now(),
            )

        return await self._store.change(job.training_job_id, prepare)

    async def _hand_over(self, job: Job) -> None:
        """Take the slot, then publish the dispatch. A job that was cancelled meanwhile stays cancelled."""
        now = self._now()
        taken = await self._store.change(
            job.training_job_id,
            lambda current: jobs.dispatch(current, now) if current.state == JobState.QUEUED else current,
        )
        if taken.state != JobState.DISPATCHED:
            return
        if taken.attempt == 1:
            metrics.QUEUE_WAIT.observe((now - taken.created_at).total_seconds())
        metrics.ATTEMPTS.labels("first" if taken.attempt == 1 else "further").inc()
        log.info("job dispatched", job=taken.training_job_id, attempt=taken.attempt, pool=taken.pool)
        await self._keeper.tell(taken)

    async def _fail(self, job: Job, error: TrainingError) -> None:
        log.warning("job failed before it was dispatched", job=job.training_job_id, reason=error.message)
        failed = await self._store.change(
            job.training_job_id,
            lambda current: jobs.fail(current, error, self._now()) if current.state == JobState.QUEUED else current,
        )
        await self._keeper.tell(failed)


def _resolved(request: TrainingRequest, base_model: str, export: Export) -> TrainingRequest:
    """The request as a worker runs it: no name in it means something else tomorrow."""
    config = request.training_config
    dataset = replace(config.dataset, snapshot=export.snapshot)
    return replace(request, training_config=replace(config, base_model=base_model, dataset=dataset))
