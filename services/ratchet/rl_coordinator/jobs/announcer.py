"""Publishes what the bus must still hear about a job, and notes in the job that it did."""

from __future__ import annotations

from ratchet.bus.connection import Bus
from ratchet.core.contract.state import Job, JobState
from ratchet.rl_coordinator.jobs.domain.announcements import failure_alert, pending_announcement
from ratchet.rl_coordinator.jobs.domain.jobs import mark_announced
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs


class Announcer:
    """Publishes first and notes it afterwards: a coordinator that stops in between publishes the same event again."""

    def __init__(self, bus: Bus, store: KvJobs) -> None:
        self._bus = bus
        self._store = store

    async def publish_pending(self, job: Job) -> None:
        """Publish the announcement of the job's state, unless the bus knows it."""
        message = pending_announcement(job)
        if message is None:
            return
        await self._bus.publish(message, cause=job.cause)
        if job.state == JobState.FAILED:
            await self._bus.publish(failure_alert(job), cause=job.cause)

        def mark(current: Job) -> Job:
            same = (current.state, current.attempt) == (job.state, job.attempt)
            return mark_announced(current) if same else current

        await self._store.change_job(job.training_job_id, mark)
