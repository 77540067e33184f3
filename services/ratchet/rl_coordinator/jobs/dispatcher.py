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
from ratchet.rl_coordinator.jobs.announcer import Announcer
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.exporter import Exporter
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry import KvPolicies

log = structlog.get_logger()


class Dispatcher:
    """One tick hands over every job that has a slot. The data is exported at the last moment, so that it is fresh."""

    def __init__(
        self,
        *,
        store: KvJobs,
        policies: KvPolicies,
        exporter: Exporter,
        announcer: Announcer,
        schedule: Schedule,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._policies = policies
        self._exporter = exporter
        self._announcer = announcer
        self._schedule = schedule
        self._now = now

    async def tick(self) -> None:
        """Fill the free slots. A job that cannot be prepared fails, and the others go on."""
        for job in self._schedule.next_up(self._store.all_jobs(), self._now()):
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

    async def preview(self, request: TrainingRequest) -> PreviewOut:
        """The data that a job for `request` would be handed over with at this moment. Raises `Rejected`."""
        return await self._exporter.preview(request, await self._policies.policies_of(request.role))

    async def _prepare(self, job: Job) -> Job:
        """The job with its data exported, and with a request in which no name means something else tomorrow."""
        policies = await self._policies.policies_of(job.role)
        config = job.request.training_config
        start = policies.starting_point(config.base_model)
        export = await self._exporter.export(job, policies, start.parent)
        dataset = replace(config.dataset, snapshot=export.snapshot)
        resolved = replace(config, base_model=start.base_model, dataset=dataset)

        def prepare(current: Job) -> Job:
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

        return await self._store.change_job(job.training_job_id, prepare)

    async def _hand_over(self, job: Job) -> None:
        """Take the slot, then publish the dispatch. A job that was cancelled meanwhile stays cancelled."""
        now = self._now()
        taken = await self._store.change_job(
            job.training_job_id,
            lambda current: jobs.dispatch(current, now) if current.state == JobState.QUEUED else current,
        )
        if taken.state != JobState.DISPATCHED:
            return
        if taken.attempt == 1:
            metrics.QUEUE_WAIT.observe((now - taken.created_at).total_seconds())
        metrics.ATTEMPTS.labels("first" if taken.attempt == 1 else "further").inc()
        log.info("job dispatched", job=taken.training_job_id, attempt=taken.attempt, pool=taken.pool)
        await self._announcer.publish_pending(taken)

    async def _fail(self, job: Job, error: TrainingError) -> None:
        log.warning("job failed before it was dispatched", job=job.training_job_id, reason=error.message)
        failed = await self._store.change_job(
            job.training_job_id,
            lambda current: jobs.fail(current, error, self._now()) if current.state == JobState.QUEUED else current,
        )
        await self._announcer.publish_pending(failed)
