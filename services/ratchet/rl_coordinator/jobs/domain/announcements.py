"""What the bus must still be told about a job. Derived from the job itself, so a crash cannot lose it."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from ratchet.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.contract.state import Job, JobState
from ratchet.rl_coordinator.jobs.domain.jobs import announcement, try_again

REPEATABLE_S = 90.0
"""A dispatch may be published again within this time: the broker's window of known ids is two minutes."""


def due(job: Job) -> Message | None:
    """The message that announces the job's state, or None when it was announced or needs none.

    It depends on the job only, so telling it twice is the same event.
    """
    if job.announced == announcement(job):
        return None
    match job.state:
        case JobState.DISPATCHED:
            return _dispatch(job)
        case JobState.QUEUED | JobState.FAILED | JobState.CANCELLED:
            return _status(job)
        case _:
            return None


def announced(job: Job) -> Job:
    """The job once the bus knows its state."""
    return replace(job, announced=announcement(job))


def renumbered(job: Job, now: datetime) -> Job:
    """The job, unchanged unless its dispatch may or may not have been published too long ago to publish it again.

    Such a job goes back to the queue as the next attempt, which fences off the first message if there is one.
    """
    age_s = (now - job.updated_at).total_seconds()
    if job.state == JobState.DISPATCHED and due(job) is not None and age_s > REPEATABLE_S:
        return try_again(job, now)
    return job


def _dispatch(job: Job) -> TrainingDispatch:
    return TrainingDispatch(
        training_job_id=job.training_job_id,
        attempt=job.attempt,
        pool=job.pool,
        timestamp=job.updated_at,
        request=job.request,
        parent=job.parent,
        resume_from=job.artifacts.checkpoint if job.artifacts else None,
    )


def _status(job: Job) -> TrainingStatus:
    return TrainingStatus(
        training_job_id=job.training_job_id,
        timestamp=job.updated_at,
        status=job.state,
        role=job.role,
        attempt=job.attempt,
        error=job.error,
        dataset_digest=job.snapshot.digest if job.snapshot else None,
    )
