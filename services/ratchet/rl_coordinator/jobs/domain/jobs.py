"""The life of a job: states as data, and every way a job changes.

`(attempt, rank of state)` never decreases, so a job moves back to `queued` only as a later attempt, and a worker whose
attempt is not the job's is fenced off: its statuses do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from ratchet.bus.message import Cause, cause_of
from ratchet.core.contract.snapshot import EXECUTIONS, TRAJECTORIES
from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.core.contract.training import (
    ErrorCode,
    SnapshotRef,
    TrainingError,
    TrainingRequest,
    TrainingStatus,
)
from ratchet.core.errors import WrongState
from ratchet.core.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.core.rules.job_facts import usage_of
from ratchet.rl_coordinator.jobs.domain.retries import RetryRule, eased

NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.DISPATCHED, JobState.FAILED, JobState.CANCELLED}),
    JobState.DISPATCHED: frozenset({JobState.RUNNING, JobState.QUEUED, *ENDED}),
    JobState.RUNNING: frozenset({JobState.RUNNING, JobState.QUEUED, *ENDED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}
"""From each state, where a job may go. `queued` is re-entered by the next attempt only; from an end, when a person
resumes the job."""

ACTIVE = frozenset({JobState.DISPATCHED, JobState.RUNNING})
"""States that hold a slot."""
RANK: Mapping[JobState, int] = {state: min(rank, 3) for rank, state in enumerate(JobState)}
"""Order within one attempt; the three ends are equal."""

N = TypeVar("N", int, float)

LONGEST_PAUSE = 2
"""A job that no worker takes pauses for at most so many times `Limits.claim_s` before it takes a slot again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often a job may try."""

    lease_s: float
    """A running job that is silent for longer is given to another worker."""
    claim_s: float
    """A dispatch that no worker takes within this time gives its slot back."""
    max_attempts: int
    """Attempts of workers after which a job whose workers keep vanishing fails."""
    retries: Mapping[str, RetryRule]
    """By error code; a code that is not listed is not retried."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rewarded trajectories and preferences a role ever had: triggers count on from the newest job's."""

    rewarded: int = 0
    preferences: int = 0


CountedOf = Callable[[str], Counted]
"""The counts of a role at this moment."""


def learns_from_trajectories(job: Job) -> bool:
    """Whether a job uses rewarded trajectories up: one that learns from pairs or thumbs, reads a few for what was said
    of them, or offers no policy, leaves their count alone. Executions are those of rewarded trajectories."""
    algorithm = ALGORITHMS.get(job.algorithm)
    is_of_trajectories = dataset_format(job.algorithm) in (TRAJECTORIES, EXECUTIONS, None)
    return job.request.offer and is_of_trajectories and not (algorithm and algorithm.writes_bundle)


def accept(request: TrainingRequest, *, pool: str, counted: Counted, now: datetime, cause: Cause | None = None) -> Job:
    """The queued job of a request. `cause`: the request's own event."""
    return Job(
        training_job_id=request.training_job_id,
        role=request.role,
        algorithm=request.training_config.algorithm,
        state=JobState.QUEUED,
        priority=request.priority,
        created_at=now,
        updated_at=now,
        request=request,
        attempt=1,
        pool=pool,
        rewarded=counted.rewarded,
        preferences=counted.preferences,
        cause=cause,
    )


def dispatch(job: Job, now: datetime) -> Job:
    """The job takes a slot; its dispatch is announced next."""
    return _move(job, JobState.DISPATCHED, now, retry_at=None, dispatched_at=job.dispatched_at or now)


def cancel(job: Job, now: datetime, actor: str, *, at_once: bool = False) -> Job:
    """A queued job is cancelled at once; a worker is asked to stop after its train step, with a checkpoint.

    `at_once`: it is asked to end the training without one, also where it was asked before. Raises `WrongState` for a
    job that has ended.
    """
    is_asked = job.cancel_requested and job.cancel_now >= at_once
    if is_asked or job.state == JobState.CANCELLED:
        return job
    if job.state in ENDED:
        raise WrongState(f"job {job.training_job_id} is already {job.state}")
    if job.state == JobState.QUEUED:
        return _move(job, JobState.CANCELLED, now, cancel_requested=True, cancelled_by=actor, finished_at=now)
    by = job.cancelled_by or actor
    return replace(job, cancel_requested=True, cancel_now=at_once, cancelled_by=by, updated_at=now)


def resume(job: Job, now: datetime, actor: str) -> Job:
    """A cancelled or failed job waits as its next attempt, which goes on from the newest checkpoint with the same data.

    It may try as often as a new job: what was tried before counts against no limit. Raises `WrongState` for a job that
    has not ended, is complete, or has no checkpoint.
    """
    job_id = job.training_job_id
    if job.state not in (JobState.CANCELLED, JobState.FAILED):
        raise WrongState(f"job {job_id} is {job.state}: only a cancelled or failed job is resumed")
    if job.artifacts is None or job.artifacts.checkpoint is None:
        raise WrongState(f"job {job_id} has no checkpoint to go on from: ask for it again")
    asked = {"cancel_requested": False, "cancel_now": False, "cancelled_by": None, "resumed_by": actor}
    anew = {"finished_at": None, "health_stop": None, "forgiven": job.attempt - job.unclaimed}
    return try_again(replace(job, **anew, **asked), now)


def fail(job: Job, error: TrainingError, now: datetime) -> Job:
    """The job ends without a policy."""
    return _move(job, JobState.FAILED, now, error=error, finished_at=now)


def try_again(job: Job, now: datetime, *, delay_s: float = 0.0, error: TrainingError | None = None) -> Job:
    """The next attempt waits in the queue and will resume from the newest checkpoint."""
    return _move(
        job,
        JobState.QUEUED,
        now,
        attempt=job.attempt + 1,
        retry_at=now + timedelta(seconds=delay_s) if delay_s else None,
        error=error,
        worker=None,
        instance=None,
        heartbeat_at=None,
        stopping=None,
        progress=None,
        resource_usage=None,
        spent=usage_of(job),
    )


def take_back(job: Job, now: datetime, error: TrainingError | None = None) -> Job:
    """A dispatched job that no worker has taken waits as the next attempt, which fences off a worker that comes late.

    It tells nothing about the job, so it counts against no limit of attempts. One that is to be cancelled ends.
    """
    if job.cancel_requested:
        return _move(job, JobState.CANCELLED, now, finished_at=now)
    return replace(try_again(job, now, error=error), unclaimed=job.unclaimed + 1)


def begin_anew(job: Job, snapshot: SnapshotRef | None, now: datetime) -> Job:
    """A job whose data was erased in part waits as its next attempt, with data chosen anew and without a checkpoint.

    `snapshot`: the other rows of a snapshot that a person named. The worker that has the job is fenced off.
    """
    if job.state in ENDED:
        return job
    waiting = job if job.state == JobState.QUEUED else replace(try_again(job, now), unclaimed=job.unclaimed + 1)
    config = job.request.training_config
    named = snapshot if config.dataset.source == "s3" else None
    request = replace(job.request, training_config=replace(config, dataset=replace(config.dataset, snapshot=named)))
    return replace(waiting, request=request, snapshot=None, trajectories=None, artifacts=None)


def tried(job: Job) -> int:
    """Attempts that a worker had and did not hand back in order, since a person resumed the job last."""
    return job.attempt - job.unclaimed - job.forgiven


def fold(job: Job, status: TrainingStatus, now: datetime, limits: Limits) -> Job:
    """The job after a worker's status, or unchanged: it counts only for a held slot and the current attempt."""
    if job.state not in ACTIVE or status.attempt != job.attempt or _from_another(job, status):
        return job
    alive = _with_report(job, status, now)
    match status.status:
        case JobState.RUNNING:
            after = alive
        case JobState.COMPLETED:
            after = mark_announced(_move(alive, JobState.COMPLETED, now, finished_at=now))
        case JobState.CANCELLED | JobState.FAILED if job.cancel_requested:
            after = mark_announced(_move(alive, JobState.CANCELLED, now, finished_at=now))
        case JobState.CANCELLED:  # the worker's machine goes away: another worker takes over, from its checkpoint
            after = replace(try_again(alive, now), unclaimed=alive.unclaimed + 1)
        case JobState.FAILED:
            after = _retry_or_fail(alive, now, limits)
        case _:
            return job
    if (after.attempt, after.state) == (job.attempt, job.state):
        return after
    return replace(after, cause=cause_of(status, job.cause))


def expire(job: Job, *, listening_since: datetime, now: datetime, limits: Limits) -> Job:
    """The job after `now` if its worker is silent for too long, or no worker took it, else unchanged.

    Silence counts from when the coordinator could hear: a worker is not blamed for the coordinator's own absence.
    """
    heard_at = job.heartbeat_at or job.updated_at
    # A sign of life in the future was noted by a clock that was wrong.
    silent_since = max(heard_at, listening_since) if heard_at <= now else min(listening_since, now)
    unclaimed = job.state == JobState.DISPATCHED and not job.cancel_requested
    allowed_s = limits.claim_s if unclaimed else limits.lease_s
    if (now - silent_since).total_seconds() <= allowed_s or job.state not in ACTIVE:
        return job
    if job.cancel_requested:
        return _move(job, JobState.CANCELLED, now, finished_at=now)
    if unclaimed:
        # The first time it is dispatched again at once: its dispatch was lost. Later others may have the slot first.
        untaken = f"no worker of pool {job.pool} took attempt {job.attempt} within {limits.claim_s:g} s"
        waiting = take_back(job, now, TrainingError(code=ErrorCode.INFRA, message=untaken))
        pause_s = limits.claim_s * min(job.unclaimed, LONGEST_PAUSE)
        return replace(waiting, retry_at=now + timedelta(seconds=pause_s)) if pause_s else waiting
    silence = TrainingError(
        code=ErrorCode.INFRA, message=f"worker {job.worker or '?'} was silent for {limits.lease_s:g} s"
    )
    if tried(job) >= limits.max_attempts:
        return fail(job, silence, now)
    return try_again(job, now, error=silence)


def fail_overdue(job: Job, now: datetime) -> Job:
    """The job failed with TIMEOUT if its deadline passed while it waited, else unchanged."""
    deadline = job.request.deadline
    if job.state != JobState.QUEUED or deadline is None or now <= deadline:
        return job
    message = f"the deadline {deadline.isoformat()} passed while the job was queued"
    return fail(job, TrainingError(code=ErrorCode.TIMEOUT, message=message), now)


def announcement(job: Job) -> str:
    """The value of `Job.announced` once the bus knows the job's state."""
    return f"{job.attempt}:{job.state}"


def is_announced(job: Job) -> bool:
    """Whether the bus knows the job's state."""
    return job.announced == announcement(job)


def mark_announced(job: Job) -> Job:
    """The job once the bus knows its state, from us or from the worker."""
    return replace(job, announced=announcement(job))


def _from_another(job: Job, status: TrainingStatus) -> bool:
    """Whether another process than the one that has the attempt reports: two may get one dispatch."""
    instance = status.metadata.instance if status.metadata else None
    return None not in (job.instance, instance) and job.instance != instance


def _with_report(job: Job, status: TrainingStatus, now: datetime) -> Job:
    """The job with what its worker reports; a step never runs backwards within an attempt."""
    artifacts = status.artifacts or job.artifacts
    if artifacts is not None and artifacts.checkpoint is None and job.artifacts is not None:
        artifacts = replace(artifacts, checkpoint=job.artifacts.checkpoint)
    progress = status.progress or job.progress
    if progress and job.progress and (progress.current_step or 0) < (job.progress.current_step or 0):
        progress = job.progress
    return replace(
        job,
        state=JobState.RUNNING,
        updated_at=now,
        heartbeat_at=now,
        started_at=job.started_at or now,
        worker=(status.metadata.worker if status.metadata else None) or job.worker,
        instance=job.instance or (status.metadata.instance if status.metadata else None),
        progress=progress,
        metrics=(status.metrics.current if status.metrics else None) or job.metrics,
        artifacts=artifacts,
        error=status.error,
        findings=status.findings or job.findings,
        health_stop=status.health_stop,
        stopping=status.stopping or job.stopping,
        evaluation_results=status.evaluation_results or job.evaluation_results,
        resource_usage=status.resource_usage or job.resource_usage,
    )


def _retry_or_fail(job: Job, now: datetime, limits: Limits) -> Job:
    error = job.error or TrainingError(code=ErrorCode.UNKNOWN, message="the worker gave no reason")
    rule = limits.retries.get(error.code)
    may_retry = rule is not None and not error.final and tried(job) < rule.attempts
    request = eased(job.request, rule) if rule and may_retry else None
    if rule is None or request is None:
        return mark_announced(fail(job, error, now))
    again = try_again(job, now, delay_s=rule.delay_s, error=error)
    if rule.fresh_data:
        again = replace(again, snapshot=None, trajectories=None)
    return replace(again, request=request, artifacts=job.artifacts if rule.resume else None)


def _move(job: Job, state: JobState, now: datetime, **changes: Any) -> Job:
    """The only way to another state. `Any`: the changes are checked by the struct's own fields."""
    following = replace(job, state=state, updated_at=now, **changes)
    before, after = job.state, state
    forward = (following.attempt, RANK[after]) >= (job.attempt, RANK[before])
    if after not in NEXT[before] or not forward:
        raise WrongState(f"job {job.training_job_id} cannot go from {before} to {after}")
    return following
