"""What the bus must still hear about a job. Derived from the job itself, so a crash cannot lose it."""

from __future__ import annotations

from datetime import datetime

from ratchet.bus.message import named_id
from ratchet.core.contract import Alert, Message, TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import ErrorCode
from ratchet.rl_coordinator.jobs.domain.jobs import is_announced, take_back

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


def failure_alert(job: Job) -> Alert:
    """What operators hear of a job that failed for good; the same event however often it is published.

    A job that is resumed and fails again is another event.
    """
    code = job.error.code if job.error else ErrorCode.UNKNOWN
    message = job.error.message if job.error else "no reason is known"
    attempts = f"{job.attempt} attempt{'' if job.attempt == 1 else 's'}"
    return Alert(
        alert_id=named_id("job failed", job.training_job_id, str(job.attempt)),
        key=f"job-{job.training_job_id}",
        severity="warning",
        summary=f"training of role {job.role} ({job.algorithm}) failed with {code} after {attempts}: {message}",
        source="rl_coordinator",
        at=job.finished_at or job.updated_at,
        role=job.role,
    )


def requeue_unconfirmed(job: Job, now: datetime) -> Job:
    """The job, back in the queue if nothing says whether its dispatch was published and it is too late to repeat it.

    It waits there as the next attempt, which fences off the first dispatch if there is one. One that is to be cancelled
    ends instead.
    """
    age_s = (now - job.updated_at).total_seconds()
    if job.state == JobState.DISPATCHED and not is_announced(job) and age_s > REPEATABLE_S:
        return take_back(job, now)
    return job
