"""When a role has enough new rewarded trajectories, or preferences, to be trained again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from ratchet.bus.message import Message
from ratchet.core.contract.reward import Preference, Reward
from ratchet.core.contract.snapshot import PAIRS
from ratchet.core.contract.state import ENDED, Job, TriggerNote
from ratchet.core.contract.training import TrainingConfig, TrainingRequest
from ratchet.core.rules.algorithms import dataset_format
from ratchet.rl_coordinator.jobs.domain import learns_from_trajectories

MANUAL = "manual"
THRESHOLD = "threshold_reached"
SCHEDULED = "scheduled"
DEGRADED = "performance_degradation"
SCHEDULE, DEGRADATION = "schedule", "degradation"
"""Kinds of triggers; those that count are named like what they count."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A trigger fires for a role."""

    kind: str
    reason: str
    """`trigger_reason` of the request."""
    why: str
    """In words, with its numbers."""
    job_id: str | None = None
    """Where it follows from what fired, which then asks for one job however often it fires; None: a new one."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is counted by role, and starts a training when there is enough of it."""

    name: str
    """Name of its projection, and the kind of its trigger."""
    noun: str
    role_of: Callable[[Message], str | None]
    """The role whose counter a message moves."""
    count_at: Callable[[Job], int | None]
    """The counter when a job was accepted that uses up what is counted; None for a job that does not."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a role is from the training that a measure starts."""

    start: int
    """The counter when the role last learned from what is counted, or was asked to; 0 when it never was."""
    new: int
    """Counted since then."""
    is_enough: bool
    """It is time, by this measure alone."""
    is_due: bool
    """It is, and no trigger's job of the role is under way: a further trigger coalesces with it."""


def rewarded_role(message: Message) -> str | None:
    """The role whose counter of rewards a message moves: only the first revision of a reward counts."""
    return message.role if isinstance(message, Reward) and message.revision == 0 else None


def preferring_role(message: Message) -> str | None:
    """The role whose counter of preferences a message moves."""
    return message.role if isinstance(message, Preference) else None


REWARDED = Measure(
    name="rewarded",
    noun="rewarded trajectories",
    role_of=rewarded_role,
    count_at=lambda job: job.rewarded or 0 if learns_from_trajectories(job) else None,
)
PREFERRED = Measure(
    name="preferences",
    noun="preferences",
    role_of=preferring_role,
    count_at=lambda job: job.preferences or 0 if dataset_format(job.algorithm) == PAIRS else None,
)


def count_one_more(count: int | None) -> int:
    """The fold of a counter: what is counted of a role, ever."""
    return (count or 0) + 1


def standing(measure: Measure, role: str, *, jobs: Sequence[Job], counted: int, threshold: int | None) -> Standing:
    """How far `role` is from its next training; without a threshold none is ever due."""
    counts = (measure.count_at(job) for job in jobs if job.role == role)
    busy = under_way(role, jobs) is not None
    # A count above the counter is of an earlier counter: the bucket was lost, or restored from an older copy.
    start = max((count for count in counts if count is not None and count <= counted), default=0)
    enough = threshold is not None and counted - start >= threshold
    return Standing(start=start, new=max(0, counted - start), is_enough=enough, is_due=enough and not busy)


def under_way(role: str, jobs: Sequence[Job]) -> Job | None:
    """The job of a trigger that the role waits for."""
    own = (job for job in jobs if job.role == role and job.state not in ENDED)
    return next((job for job in own if job.request.trigger_reason != MANUAL), None)


def noted(job: Job, note: TriggerNote) -> Job:
    """The job with what asked for it; of each kind the first note stays."""
    notes = job.triggers or []
    return job if any(one.kind == note.kind for one in notes) else replace(job, triggers=[*notes, note])


def last_note(kind: str, role: str, jobs: Sequence[Job]) -> tuple[TriggerNote, Job] | None:
    """The newest firing of a kind, and its job."""
    notes = [(note, job) for job in jobs if job.role == role for note in job.triggers or [] if note.kind == kind]
    return max(notes, key=lambda one: one[0].at, default=None)


def why_due(measure: Measure, now: Standing, threshold: int | None, waits_for: Job | None) -> str:
    """Why a measure would start a training, or why not, in words. `waits_for`: the trigger's job that is under way."""
    if threshold is None:
        return f"the role has no recipe for {measure.noun}: it is trained by hand"
    counted = f"{now.new} new {measure.noun}, the threshold is {threshold}"
    if now.is_enough and waits_for is not None:
        return f"{counted}; job {waits_for.training_job_id}, which a trigger started, is {waits_for.state}"
    return counted


def threshold_firing(measure: Measure, now: Standing, threshold: int) -> Firing:
    """What a measure fires when there is enough of it."""
    return Firing(
        kind=measure.name,
        reason=THRESHOLD,
        why=why_due(measure, now, threshold, None),
    )


def training_request(
    firing: Firing, job_id: str, role: str, config: TrainingConfig, *, priority: str, now: datetime
) -> TrainingRequest:
    """The request that a trigger makes."""
    return TrainingRequest(
        training_job_id=job_id,
        timestamp=now,
        requester="rl_coordinator",
        trigger_reason=firing.reason,
        training_config=config,
        role=role,
        priority=priority,
    )
