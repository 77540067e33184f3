"""When a role has enough new rewarded trajectories, or preferences, to be trained again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ratchet.bus.message import Message, named_id
from ratchet.contract.reward import Preference, Reward
from ratchet.contract.snapshot import PAIRS, TRAJECTORIES
from ratchet.contract.state import Job
from ratchet.contract.training import TrainingConfig, TrainingRequest
from ratchet.rl_coordinator.jobs.domain.jobs import TERMINAL
from ratchet.rules.algorithms import dataset_format

MANUAL = "manual"
THRESHOLD = "threshold_reached"
PREFERENCES = "preferences"


@dataclass(frozen=True, slots=True)
class Counted:
    """What of a role was ever counted."""

    rewarded: int = 0
    preferences: int = 0


def counted_role(message: Message) -> str | None:
    """The role whose counter a message moves: only the first revision of a reward counts."""
    return message.role if isinstance(message, Reward) and message.revision == 0 else None


def count_one_more(count: int | None) -> int:
    """The fold of a counter: rewarded trajectories, or preferences, of a role, ever."""
    return (count or 0) + 1


def preferring_role(message: Message) -> str | None:
    """The role whose counter of preferences a message moves."""
    return message.role if isinstance(message, Preference) else None


def counted_from(role: str, jobs: Iterable[Job]) -> int:
    """The counter when the role last learned from trajectories, or was asked to; 0 when it never was."""
    return max((job.rewarded or 0 for job in jobs if job.role == role and learns_from_trajectories(job)), default=0)


def learns_from_trajectories(job: Job) -> bool:
    """Whether a job uses rewarded trajectories up: one that learns from pairs or thumbs leaves their count alone."""
    return dataset_format(job.algorithm) in (TRAJECTORIES, None)


def is_pending(role: str, jobs: Iterable[Job]) -> bool:
    """Whether a trigger's job of the role has not ended yet: a further trigger coalesces with it."""
    return any(job.role == role and job.state not in TERMINAL and job.request.trigger_reason != MANUAL for job in jobs)


def threshold_request(
    role: str, config: TrainingConfig, *, jobs: Iterable[Job], counted: int, threshold: int, now: datetime
) -> TrainingRequest | None:
    """The request that the threshold makes, or None while it is not reached or one is under way.

    Its id follows from the role and where the count began, so firing twice asks for one job.
    """
    known = list(jobs)
    start = counted_from(role, known)
    if counted - start < threshold or is_pending(role, known):
        return None
    return _request(role, config, named_id("trigger", THRESHOLD, role, start), now)


def preferences_from(role: str, jobs: Iterable[Job]) -> int:
    """The counter of preferences when the role last learned from pairs, or was asked to; 0 when it never was."""
    own = [job for job in jobs if job.role == role and dataset_format(job.algorithm) == PAIRS]
    return max((job.preferences or 0 for job in own), default=0)


def should_run_dpo(role: str, *, jobs: Iterable[Job], preferences: int, threshold: int) -> bool:
    """Whether the role has `threshold` preferences that it has not learned from, and no trigger's job under way."""
    known = list(jobs)
    return preferences - preferences_from(role, known) >= threshold and not is_pending(role, known)


def preferences_request(
    role: str, config: TrainingConfig, *, jobs: Iterable[Job], counted: int, threshold: int, now: datetime
) -> TrainingRequest | None:
    """The request that enough preferences make; see `threshold_request`."""
    known = list(jobs)
    if not should_run_dpo(role, jobs=known, preferences=counted, threshold=threshold):
        return None
    return _request(role, config, named_id("trigger", PREFERENCES, role, preferences_from(role, known)), now)


def _request(role: str, config: TrainingConfig, job_id: str, now: datetime) -> TrainingRequest:
    return TrainingRequest(
        training_job_id=job_id,
        timestamp=now,
        requester="rl_coordinator",
        trigger_reason=THRESHOLD,
        training_config=config,
        role=role,
    )
