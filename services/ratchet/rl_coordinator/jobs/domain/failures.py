"""What operators hear of trainings that fail: each failure of a role, three in a row, and that one has worked again.

Jobs are counted, never attempts. Every alert is derived from the jobs, so one that is published twice is one event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ratchet.bus.message import named_id
from ratchet.core.contract import Alert
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import ErrorCode

SOURCE = "rl_coordinator"
IN_A_ROW = 3
"""Jobs of a role that failed one after the other: no longer the fault of one of them."""


def failure_alerts(job: Job, jobs: Iterable[Job]) -> list[Alert]:
    """The alerts of a job that failed for good, among all jobs."""
    row = _in_a_row(job, jobs)
    return [failure_alert(job), *([_repeated(job, row)] if row >= IN_A_ROW else [])]


def recovery_alerts(job: Job, jobs: Iterable[Job]) -> list[Alert]:
    """What a job that completed ends, among all jobs: nothing, where the one before it had completed too."""
    row = _in_a_row(job, [other for other in jobs if other.training_job_id != job.training_job_id])
    keys = [failed_key(job.role)] * (row > 0) + [repeated_key(job.role)] * (row >= IN_A_ROW)
    return [
        Alert(
            alert_id=named_id("training works again", key, job.training_job_id),
            key=key,
            severity="info",
            summary=f"a training of role {job.role} was completed",
            source=SOURCE,
            at=job.finished_at or job.updated_at,
            cleared=True,
            role=job.role,
        )
        for key in keys
    ]


def failures_in_a_row(jobs: Iterable[Job]) -> Mapping[str, int]:
    """By role, how many of its newest jobs that have ended failed, one after the other."""
    by_role: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state in (JobState.FAILED, JobState.COMPLETED):
            by_role.setdefault(job.role, []).append(job)
    return {role: _newest_failures(ended) for role, ended in by_role.items()}


def failed_key(role: str) -> str:
    """Key of the alert that a training of the role failed."""
    return f"training-failed:{role}"


def repeated_key(role: str) -> str:
    """Key of the alert that its trainings keep failing."""
    return f"trainings-failing:{role}"


def failure_alert(job: Job) -> Alert:
    """That a job failed for good. A job that is resumed and fails again is another event."""
    code = job.error.code if job.error else ErrorCode.UNKNOWN
    message = job.error.message if job.error else "no reason is known"
    attempts = f"{job.attempt} attempt{'' if job.attempt == 1 else 's'}"
    return Alert(
        alert_id=named_id("job failed", job.training_job_id, str(job.attempt)),
        key=failed_key(job.role),
        severity="warning",
        summary=f"training of role {job.role} ({job.algorithm}) failed with {code} after {attempts}: {message}",
        source=SOURCE,
        at=job.finished_at or job.updated_at,
        role=job.role,
        labels={"training_job_id": job.training_job_id},
    )


def _repeated(job: Job, row: int) -> Alert:
    message = job.error.message if job.error else "no reason is known"
    return Alert(
        alert_id=named_id("jobs failed in a row", job.training_job_id, str(job.attempt)),
        key=repeated_key(job.role),
        severity="critical",
        summary=f"the last {row} trainings of role {job.role} failed, the newest one: {message}",
        source=SOURCE,
        at=job.finished_at or job.updated_at,
        role=job.role,
    )


def _in_a_row(job: Job, jobs: Iterable[Job]) -> int:
    """Failures in a row of the job's role, the job as it is now among them; `jobs` may have an older state of it."""
    others = [other for other in jobs if other.role == job.role and other.training_job_id != job.training_job_id]
    among = [*others, job] if job.state == JobState.FAILED else others
    return failures_in_a_row(among).get(job.role, 0)


def _newest_failures(ended: list[Job]) -> int:
    """Of jobs of one role that have ended."""
    newest_first = sorted(ended, key=lambda job: (job.finished_at or job.updated_at, job.created_at), reverse=True)
    states = [job.state for job in newest_first]
    return states.index(JobState.COMPLETED) if JobState.COMPLETED in states else len(states)
