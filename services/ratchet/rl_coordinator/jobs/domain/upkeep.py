"""What time alone does to jobs: leases lapse, deadlines pass, and old ended jobs leave the bucket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.contract.state import ENDED, Job
from ratchet.rl_coordinator.jobs.domain.announcements import requeue_unconfirmed
from ratchet.rl_coordinator.jobs.domain.jobs import (
    Limits,
    expire,
    fail_overdue,
    is_announced,
    learns_from_trajectories,
)


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
