"""One row of a snapshot: a trajectory with everything a learner needs, so that it needs no other store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import encode
from ratchet.contract.snapshot import Call, Row, TrajectoryRow
from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.datasets.domain.calls import calls_of
from ratchet.datasets.domain.selection import MIXED_OR_PINNED, is_left_out
from ratchet.rules.chat import ChatError
from ratchet.rules.recorded import is_captured, lacks_turns, offered_tools, recorded_chat, told_turns

TRANSFORMS: Mapping[str, Callable[[float], float]] = {
    "identity": lambda reward: reward,
    "negate": lambda reward: 1 - reward,
}
"""`negate` mirrors a reward within [0, 1]: the best becomes the worst."""

TURNS_NOT_STORED = "turns_not_stored"
NO_TRAINABLE_CALL = "no_trainable_call"
UNREADABLE_CHAT = "unreadable_chat"


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where a row of any format comes from, as the manifest tells it."""

    trajectories: tuple[str, ...]
    source: str
    preferences: tuple[str, ...] = ()
    rater: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A row of any format, and what the manifest says of it."""

    row: Row
    origin: RowOrigin


@dataclass(frozen=True, slots=True)
class Scored:
    """What is known of a trajectory besides its own messages."""

    task_key: str
    raw_reward: float
    baseline: float | None
    """On the scale of the transformed reward."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How rows are made for one job."""

    transform: str
    needs_calls: bool


def row_of(trajectory: Trajectory, turns: Sequence[Turn], scored: Scored, recipe: Recipe) -> SnapshotRow | str:
    """The row, or the reason (a token) why there can be none."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    calls = calls_of(turns, told_turns(trajectory) if is_captured(trajectory, turns) else None)
    if recipe.needs_calls and not any(call.trainable for call in calls):
        return NO_TRAINABLE_CALL
    source = trajectory.metadata.source or "client"
    try:
        row = TrajectoryRow(
            trajectory_id=trajectory.trajectory_id,
            task_key=scored.task_key,
            reward=TRANSFORMS[recipe.transform](scored.raw_reward),
            raw_reward=scored.raw_reward,
            baseline=scored.baseline,
            success=_success(trajectory),
            policy_version=_policy_version(trajectory, calls),
            source=source,
            messages=recorded_chat(trajectory, turns),
            tools=offered_tools(trajectory, turns),
            calls=calls,
        )
        encode(row)  # a chat that is nested too deeply has no JSON
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return SnapshotRow(row, RowOrigin((trajectory.trajectory_id,), source))


def _success(trajectory: Trajectory) -> bool | None:
    return trajectory.outcome.status == "success" if trajectory.outcome else None


def _policy_version(trajectory: Trajectory, calls: Sequence[Call]) -> int | None:
    """The policy of the first call; a claim counts where there are no calls."""
    if calls:
        return calls[0].policy_version
    return trajectory.policy.version if trajectory.policy else None
