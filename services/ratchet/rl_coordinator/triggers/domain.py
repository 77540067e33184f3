"""When a role is trained again: enough that is new, a time of its schedule, or a policy that serves worse than it did.

Times of a schedule are in cron's five fields, in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from ratchet.bus.message import Message
from ratchet.core.contract.reward import Preference, Reward
from ratchet.core.contract.snapshot import PAIRS
from ratchet.core.contract.state import ENDED, Job, TriggerNote
from ratchet.core.contract.training import TrainingConfig, TrainingRequest
from ratchet.core.rules.algorithms import dataset_format
from ratchet.rl_coordinator.jobs.domain.jobs import learns_from_trajectories

MANUAL = "manual"
THRESHOLD = "threshold_reached"
SCHEDULED = "scheduled"
DEGRADED = "performance_degradation"
SCHEDULE, DEGRADATION = "schedule", "degradation"
"""Kinds of triggers; those that count are named like what they count."""
Z = 3.3
"""Of the one-sided interval of a drop: by chance alone one look in 2,000 shows one. A window is looked at often."""


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


def is_first(reward: Reward) -> bool:
    """Whether it is the first reward of its trajectory."""
    return reward.revision == 0 and not reward.recomputed


REWARDED = Measure(
    name="rewarded",
    noun="rewarded trajectories",
    role_of=lambda message: message.role if isinstance(message, Reward) and is_first(message) else None,
    count_at=lambda job: job.rewarded or 0 if learns_from_trajectories(job) else None,
)
PREFERRED = Measure(
    name="preferences",
    noun="preferences",
    role_of=lambda message: message.role if isinstance(message, Preference) else None,
    count_at=lambda job: job.preferences or 0 if job.request.offer and dataset_format(job.algorithm) == PAIRS else None,
)


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
    return job if any(known.kind == note.kind for known in notes) else replace(job, triggers=[*notes, note])


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


@dataclass(frozen=True, slots=True)
class Sample:
    """Rewards of a time, one of each task: the mean of its tries."""

    n: int
    """Tasks."""
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest rewards of a policy against its earlier ones."""

    before: Sample
    recent: Sample
    drop: float
    """Before minus recent."""
    least: float
    """The drop is at least this, or chance made it."""

    @property
    def in_words(self) -> str:
        """Both means, with their numbers."""
        before, recent = self.before, self.recent
        return f"{before.mean:.3f} of {before.n} tasks, now {recent.mean:.3f} of {recent.n}"

    def problem(self, allowed: float, minimum: int) -> str | None:
        """The degradation in words; None while there is none, or too little is known."""
        is_known = min(self.before.n, self.recent.n) >= minimum
        if not (is_known and self.drop >= allowed and self.least > 0):  # a comparison with what is no number is false
            return None
        return (
            f"its mean reward fell by {self.drop:.3f} (at least {self.least:.3f}; {allowed:g} is allowed):"
            f" {self.in_words}"
        )


def compare(before: Sample, recent: Sample) -> Comparison:
    """The difference of means with its bound; variances count one extreme reward more than there was."""
    drop = before.mean - recent.mean
    error = sum((part.variance + 1 / part.n) / part.n for part in (before, recent) if part.n)
    return Comparison(before, recent, drop, drop - Z * math.sqrt(error))


FIELDS = 5


def schedule_problem(cron: str) -> str | None:
    """Why the text is no schedule; None for one."""
    if len(cron.split()) != FIELDS:
        return f"cron {cron!r} does not have five fields: minute, hour, day of month, month, day of week"
    try:
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return f"cron {cron!r}: {error}"
    except StopIteration:
        return f"cron {cron!r} never comes"
    return None


def newest_time(cron: str, now: datetime) -> datetime:
    """The last time of the schedule until `now`, `now` included."""
    return next(CronSim(cron, now.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1), reverse=True))


def next_time(cron: str, now: datetime) -> datetime:
    """The first time of the schedule after `now`."""
    return next(CronSim(cron, now.astimezone(UTC)))


def is_due(cron: str, seen: datetime | None, now: datetime) -> bool:
    """Whether a time has come since `seen`: however many have, it is due once."""
    return seen is not None and newest_time(cron, now) > seen


def corrected(cron: str, seen: datetime | None, now: datetime) -> datetime | None:
    """What to note without a training: the beginning of a schedule that is new here, and the present after a clock that
    was far ahead; None when nothing is to be corrected."""
    if seen is None or seen > next_time(cron, now):
        return newest_time(cron, now)
    return None
