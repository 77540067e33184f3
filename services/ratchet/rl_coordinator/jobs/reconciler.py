"""Brings jobs up to date: with their workers' statuses, with the time that passes, and with what the bus knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.received import Received
from ratchet.core.contract import Message, TrainingStatus
from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.core.errors import NotFound
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.domain import jobs
from ratchet.rl_coordinator.jobs.domain.failures import failure_alerts, recovery_alerts
from ratchet.rl_coordinator.jobs.domain.jobs import Limits, is_announced, mark_announced
from ratchet.rl_coordinator.jobs.domain.upkeep import (
    Listening,
    bring_up_to,
    keep_listening,
    pending_announcement,
    prunable,
)
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs

log = structlog.get_logger()

STREAM = "RL_TRAINING"
PRUNE_S = 30.0
"""How often old jobs are looked for."""
GAP_TICKS = 6
"""A tick that comes later than this many means that the coordinator was away."""


async def publish_pending(bus: Bus, store: KvJobs, job: Job) -> None:
    """Publish what the bus must still hear about a job, and note afterwards in the job that it did.

    A coordinator that stops in between publishes the same event again.
    """
    message = pending_announcement(job)
    if message is None:
        return
    await bus.publish(message, cause=job.cause)
    if job.state == JobState.FAILED:
        for alert in failure_alerts(job, store.all_jobs()):
            await bus.publish(alert, cause=job.cause)

    def mark(current: Job) -> Job:
        same = (current.state, current.attempt) == (job.state, job.attempt)
        return mark_announced(current) if same else current

    await store.change_job(job.training_job_id, mark)


class JobReconciler:
    """One tick: ask the broker for an answer, let leases and deadlines lapse, announce what is pending."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: KvJobs,
        limits: Limits,
        tick_s: float,
        retention_s: float,
        pools: Collection[str],
    ) -> None:
        self._bus = bus
        self._store = store
        self._limits = limits
        self._gap_s = max(GAP_TICKS * tick_s, 2.0)
        self._retention_s = retention_s
        self._pools = pools
        self._listening: Listening | None = None
        self._pruned_at: datetime | None = None

    async def on_status(self, received: Received[TrainingStatus]) -> Sequence[Message]:
        """A worker's status. It changes the job only if it comes from the job's present attempt.

        Operators hear of a job that fails for good, and of one that completes after it.
        """
        status = received.message
        try:
            job = await self._store.change_job(
                status.training_job_id, lambda job: jobs.fold(job, status, self._bus.now(), self._limits)
            )
        except NotFound:
            log.warning("status of an unknown job", job=status.training_job_id, status=status.status)
            return []
        if job.state != status.status or job.attempt != status.attempt:
            return []
        match job.state:
            case JobState.FAILED:
                return failure_alerts(job, self._store.all_jobs())
            case JobState.COMPLETED:
                return recovery_alerts(job, self._store.all_jobs())
            case _:
                return []

    async def tick(self) -> None:
        """Bring every job up to date once. Raises `Unavailable` while the broker is away."""
        await self._bus.extent(STREAM)
        now = self._bus.now()
        self._listening = keep_listening(self._listening, now, self._gap_s)
        if self._pruned_at is None or abs((now - self._pruned_at).total_seconds()) > PRUNE_S:
            self._pruned_at = now
            for job in prunable(self._store.all_jobs(), retention_s=self._retention_s, now=now):
                if await self._store.remove_job(job):
                    log.info("old job pruned", job=job.training_job_id, state=job.state, created_at=str(job.created_at))
        everything = self._store.all_jobs()
        for job in everything:
            if job.state not in ENDED or not is_announced(job):
                await self._reconcile(job, self._listening.since)
        metrics.count_jobs(everything, self._pools)

    async def _reconcile(self, job: Job, listening_since: datetime) -> None:
        def after_time(current: Job) -> Job:
            now = self._bus.now()
            return bring_up_to(now, current, listening_since=listening_since, limits=self._limits)

        if after_time(job) != job:
            job = await self._store.change_job(job.training_job_id, after_time)
            log.info("job changed", job=job.training_job_id, state=job.state, attempt=job.attempt)
        await publish_pending(self._bus, self._store, job)
