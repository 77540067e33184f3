"""Looks after jobs that exist: leases, deadlines, and what the bus must still be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from ratchet.bus.connection import Bus
from ratchet.contract.state import Job
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.domain import announcements, jobs
from ratchet.rl_coordinator.jobs.domain.jobs import TERMINAL, Limits
from ratchet.rl_coordinator.jobs.domain.listening import Listening, look
from ratchet.rl_coordinator.jobs.domain.retention import prunable
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs

log = structlog.get_logger()

STREAM = "RL_TRAINING"
RELOAD_S = 30.0
"""How often all jobs are read again, in case another coordinator runs for a while (a rolling restart)."""
GAP_TICKS = 6
"""A look that comes later than this many ticks means that we were away."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often jobs are looked at, how long they may take, and how long ended ones are kept."""

    tick_s: float
    limits: Limits
    retention_s: float


class Keeper:
    """One tick: hear whether the broker is there, let leases lapse, tell what is untold."""

    def __init__(self, bus: Bus, store: KvJobs, pace: Pace, now: Callable[[], datetime]) -> None:
        self._bus = bus
        self._store = store
        self._limits = pace.limits
        self._retention_s = pace.retention_s
        self._gap_s = max(GAP_TICKS * pace.tick_s, 2.0)
        self._now = now
        self._listening: Listening | None = None
        self._loaded_at: datetime | None = None

    async def tick(self) -> None:
        """Look once. Raises `Unavailable` while the broker is away."""
        await self._bus.last_sequence(STREAM)
        self._listening = look(self._listening, self._now(), self._gap_s)
        await self._reload()
        for job in self._store.all():
            await self._look_after(job)
        metrics.count_jobs(self._store.all())

    async def tell(self, job: Job) -> Job:
        """Publish what the bus must still hear of `job`, and note that it was told."""
        message = announcements.due(job)
        if message is None:
            return job
        await self._bus.publish(message, cause=job.cause)
        told = announcements.announced(job)
        return await self._store.change(
            job.training_job_id, lambda now: announcements.announced(now) if _same_state(now, told) else now
        )

    async def _look_after(self, job: Job) -> None:
        if job.state not in TERMINAL and self._tended(job) != job:
            job = await self._store.change(job.training_job_id, self._tended)
            log.info("job changed", job=job.training_job_id, state=job.state, attempt=job.attempt)
        await self.tell(job)

    def _tended(self, job: Job) -> Job:
        """The job after everything that time alone does to it."""
        now = self._now()
        since = self._listening.since if self._listening else now
        job = jobs.expire(job, listening_since=since, now=now, limits=self._limits)
        return jobs.overdue(announcements.renumbered(job, now), now)

    async def _reload(self) -> None:
        now = self._now()
        if self._loaded_at is None or (now - self._loaded_at).total_seconds() > RELOAD_S:
            await self._store.load()
            self._loaded_at = now
            await self._prune(now)

    async def _prune(self, now: datetime) -> None:
        for job in prunable(self._store.all(), retention_s=self._retention_s, now=now):
            await self._store.remove(job)
            log.info("old job pruned", job=job.training_job_id, state=job.state, created_at=str(job.created_at))


def _same_state(one: Job, other: Job) -> bool:
    return (one.state, one.attempt) == (other.state, other.attempt)
