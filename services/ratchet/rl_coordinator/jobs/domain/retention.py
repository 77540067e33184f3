"""Which ended jobs need not be kept any more: the history has them, and the bucket stays bounded."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from ratchet.contract.state import Job
from ratchet.rl_coordinator.jobs.domain.jobs import TERMINAL, announcement
from ratchet.rl_coordinator.triggers.domain import learns_from_trajectories


def prunable(jobs: Iterable[Job], *, retention_s: float, now: datetime) -> list[Job]:
    """Jobs that ended longer ago than `retention_s`, and were told so.

    The newest job of a role and algorithm stays, and so does the one that learned from trajectories with the highest
    counter: triggers count on from them.
    """
    known = list(jobs)
    kept = _counted_from(known)
    limit = now - timedelta(seconds=retention_s)
    return [
        job
        for job in known
        if job.state in TERMINAL
        and (job.announced == announcement(job))
        and (job.finished_at or job.updated_at) < limit
        and job.training_job_id not in kept
    ]


def _counted_from(jobs: Iterable[Job]) -> set[str]:
    newest: dict[tuple[str, str], Job] = {}
    highest: dict[str, Job] = {}
    for job in sorted(jobs, key=lambda each: (each.created_at, each.training_job_id)):
        newest[job.role, job.algorithm] = job
        if not learns_from_trajectories(job):
            continue
        before = highest.get(job.role)
        if before is None or (job.rewarded or 0) >= (before.rewarded or 0):
            highest[job.role] = job
    return {job.training_job_id for job in (*newest.values(), *highest.values())}
