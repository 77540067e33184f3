"""When a role has enough new rewarded trajectories to be trained again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ratchet.messages.base import Message, named_id
from ratchet.messages.reward import Reward
from ratchet.messages.state import Job
from ratchet.messages.training import TrainingConfig, TrainingRequest
from ratchet.rl_coordinator.domain.jobs import TERMINAL

MANUAL = "manual"
THRESHOLD = "threshold_reached"


def counted_role(message: Message) -> str | None:
    """The role whose counter a message moves: only the first revision of a reward counts."""
    return message.role if isinstance(message, Reward) and message.revision == 0 else None


def count_one_more(count: int | None) -> int:
    """The fold of the counter: rewarded trajectories of a role, ever."""
    return (count or 0) + 1


def counted_from(role: str, jobs: Iterable[Job]) -> int:
    """The counter when the role was last trained, or asked to be; 0 when it never was."""
    return max((job.rewarded or 0 for job in jobs if job.role == role), default=0)


def is_pending(role: str, jobs: Iterable[Job]) -> bool:
    """Whether a trigger's job of the role has not ended yet: a further trigger coalesces with it."""
    return any(job.role == role and job.state not in TERMINAL and job.request.trigger_reason != MANUAL for job in jobs)


def threshold_request(
    role: str, config: TrainingConfig, *, jobs: Iterable[Job], rewarded: int, threshold: int, now: datetime
) -> TrainingRequest | None:
    """The request that the threshold makes, or None while it is not reached or one is under way.

    Its id follows from the role and where the count began, so firing twice asks for one job.
    """
    known = list(jobs)
    start = counted_from(role, known)
    if rewarded - start < threshold or is_pending(role, known):
        return None
    return TrainingRequest(
        training_job_id=named_id("trigger", THRESHOLD, role, start),
        timestamp=now,
        requester="rl_coordinator",
        trigger_reason=THRESHOLD,
        training_config=config,
        role=role,
    )
