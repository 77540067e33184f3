"""Gives free slots to queued jobs. Roles are prepared beside each other: a slow export delays its own role alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.tasks import end
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import ErrorCode, TrainingError
from ratchet.core.errors import DigestMismatch, NotFound, RatchetError, Rejected, Unavailable
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.reconciler import publish_pending

log = structlog.get_logger()


@dataclass(kw_only=True, slots=True)
class Dispatcher:
    """A component beside its ticks. A job is prepared when a slot is free: its data is fresh. Then it takes the slot.

    While a role is prepared, the free slot stays open to the others: the role that is ready first has it.
    """

    bus: Bus
    store: KvJobs
    prepare: Callable[[Job], Awaitable[None]]
    """Stores the job with its data."""
    schedule: Schedule
    exports: int
    """Roles that are prepared at a time."""
    _preparing: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], init=False)
    _filling: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Wait for the stop. What is being prepared then is dropped: a queued job is prepared again."""
        try:
            await self._stopping.wait()
        finally:
            await end(*self._preparing.values())

    async def stop(self) -> None:
        """Prepare no further job."""
        self._stopping.set()

    async def tick(self) -> None:
        """Hand over the prepared jobs that have a slot, and begin to prepare the others that have one."""
        async with self._filling:
            waiting = [job for job in self.store.all_jobs() if job.snapshot is not None or not self._is_busy(job)]
            for job in self.schedule.next_up(waiting, self.bus.now()):
                if job.snapshot is not None:
                    await self._hand_over(job)
                elif len(self._preparing) < self.exports and not self._stopping.is_set() and not self._is_busy(job):
                    self._begin(job)

    def _is_busy(self, job: Job) -> bool:
        return job.state == JobState.QUEUED and job.role in self._preparing

    def _begin(self, job: Job) -> None:
        task = self._preparing[job.role] = asyncio.create_task(self._prepare_and_dispatch(job))

        def forget(_: asyncio.Task[None]) -> None:
            del self._preparing[job.role]

        task.add_done_callback(forget)

    async def _prepare_and_dispatch(self, job: Job) -> None:
        try:
            failure = await self._failure(job)
            if failure is not None:
                await self._fail(job, failure)
            await self.tick()
        except RatchetError as error:
            log.warning("cannot prepare the job yet", job=job.training_job_id, reason=str(error))
        except Exception:
            log.exception("dispatching failed", job=job.training_job_id)

    async def _failure(self, job: Job) -> TrainingError | None:
        """Prepare a job; returns why it can never be prepared. Raises `Unavailable`."""
        try:
            await self.prepare(job)
        except Unavailable:
            raise
        except (Rejected, NotFound, DigestMismatch) as error:
            return TrainingError(code=ErrorCode.DATA, message=str(error))
        except Exception as error:  # one job's data must not stop the other jobs
            log.exception("preparing failed", job=job.training_job_id)
            return TrainingError(code=ErrorCode.UNKNOWN, message=f"preparing the data failed: {error!r}")
        return None

    async def _hand_over(self, job: Job) -> None:
        """Take the slot, then publish the dispatch. A job that was cancelled meanwhile stays cancelled."""
        now = self.bus.now()
        taken = await self.store.change_job(
            job.training_job_id,
            lambda current: jobs.dispatch(current, now) if current.state == JobState.QUEUED else current,
        )
        if taken.state != JobState.DISPATCHED:
            return
        if taken.attempt == 1:
            metrics.QUEUE_WAIT.observe((now - taken.created_at).total_seconds())
        metrics.ATTEMPTS.labels("first" if taken.attempt == 1 else "further").inc()
        log.info("job dispatched", job=taken.training_job_id, attempt=taken.attempt, pool=taken.pool)
        await publish_pending(self.bus, self.store, taken)

    async def _fail(self, job: Job, error: TrainingError) -> None:
        log.warning("job failed before it was dispatched", job=job.training_job_id, reason=error.message)
        failed = await self.store.change_job(
            job.training_job_id,
            lambda current: jobs.fail(current, error, self.bus.now()) if current.state == JobState.QUEUED else current,
        )
        await publish_pending(self.bus, self.store, failed)
