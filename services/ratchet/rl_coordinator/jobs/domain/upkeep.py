"""What follows from a job by itself: what the bus must still hear about it, and what time alone does to it.

Leases lapse, deadlines pass, old ended jobs leave the bucket. An announcement is derived from the job, so a crash
cannot lose it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.rl_coordinator.jobs.domain.jobs import (
    Limits,
    expire,
    fail_overdue,
    is_announced,
    learns_from_trajectories,
    take_back,
)

TAKEN = timedelta(minutes=5)
"""A worker that starts for its first job takes minutes to import torch on a busy machine."""
REPEATABLE_S = 90.0
"""A dispatch may be published again within this time: the broker remembers event ids for two minutes."""


def pending_announcement(job: Job) -> Message | None:
    """The message that announces the job's state, or None when it was announced or needs none.

    It depends on the job only: published twice, it is the same event.
    """
    if is_announced(job):
        return None
    match job.state:
        case JobState.DISPATCHED:
            return TrainingDispatch(
                training_job_id=job.training_job_id,
                attempt=job.attempt,
                pool=job.pool,
                timestamp=job.updated_at,
                request=job.request,
                parent=job.parent,
                resume_from=job.artifacts.checkpoint if job.artifacts else None,
            )
        case JobState.QUEUED | JobState.FAILED | JobState.CANCELLED:
            return TrainingStatus(
                training_job_id=job.training_job_id,
                timestamp=job.updated_at,
                status=job.state,
                role=job.role,
                attempt=job.attempt,
                error=job.error,
                dataset_digest=job.snapshot.digest if job.snapshot else None,
            )
        case _:
            return None


def requeue_unconfirmed(job: Job, now: datetime) -> Job:
    """The job, back in the queue if nothing says whether its dispatch was published and it is too late to repeat it.

    It waits there as the next attempt, which fences off the first dispatch if there is one. One that is to be cancelled
    ends instead.
    """
    age_s = (now - job.updated_at).total_seconds()
    if job.state == JobState.DISPATCHED and not is_announced(job) and age_s > REPEATABLE_S:
        return take_back(job, now)
    return job


def untaken(jobs: Iterable[Job], now: datetime) -> str | None:
    """Which pools have no worker that takes its job; None where each has."""
    waiting = [job for job in jobs if job.state == JobState.DISPATCHED and now - job.updated_at > TAKEN]
    pools = ", ".join(sorted({job.pool for job in waiting}))
    return f"no worker of the pool {pools} has taken its job for {TAKEN.seconds // 60} minutes" if waiting else None


@dataclass(frozen=True, slots=True)
class Listening:
    """Since when the coordinator hears its workers: after its own outage, their silence is not their fault."""

    since: datetime
    """Start of the present stretch without a gap."""
    last: datetime
    """When the broker last answered."""


def keep_listening(before: Listening | None, now: datetime, gap_s: float) -> Listening:
    """After the broker answered once more. A pause longer than `gap_s` starts a new stretch."""
    if before is None or now - before.last > timedelta(seconds=gap_s) or now < before.last:
        return Listening(since=now, last=now)
    return Listening(since=before.since, last=now)


def bring_up_to(now: datetime, job: Job, *, listening_since: datetime, limits: Limits) -> Job:
    """The job after everything that time alone does to it until `now`."""
    job = expire(job, listening_since=listening_since, now=now, limits=limits)
    return fail_overdue(requeue_unconfirmed(job, now), now)


def prunable(jobs: Iterable[Job], *, retention_s: float, now: datetime) -> list[Job]:
    """Jobs that ended longer ago than `retention_s`, and whose end was announced.

    The newest job of a role and algorithm stays, and so does the one that learned from trajectories with the highest
    counter: triggers count on from them.
    """
    oldest_first = sorted(jobs, key=lambda job: (job.created_at, job.training_job_id))
    newest: dict[tuple[str, str], Job] = {}
    highest: dict[str, Job] = {}
    for job in oldest_first:
        newest[job.role, job.algorithm] = job
        before = highest.get(job.role)
        if learns_from_trajectories(job) and (before is None or (job.rewarded or 0) >= (before.rewarded or 0)):
            highest[job.role] = job
    kept = {job.training_job_id for job in (*newest.values(), *highest.values())}
    limit = now - timedelta(seconds=retention_s)
    return [
        job
        for job in oldest_first
        if job.state in ENDED
        and is_announced(job)
        and (job.finished_at or job.updated_at) < limit
        and job.training_job_id not in kept
    ]
