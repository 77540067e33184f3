"""One row of a snapshot: a trajectory with everything a learner needs, so that it needs no other store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import encode
from ratchet.contract.snapshot import Row, TrajectoryRow
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
    """Where a row of any format comes from, as the manifest lists it."""

    trajectories: tuple[str, ...]
    source: str
    preferences: tuple[str, ...] = ()
    rater: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A row of any format, and its part of the manifest."""

    row: Row
    origin: RowOrigin


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward of a trajectory beside those of its task."""

    task_key: str
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None
    """On the scale of `reward`."""


def row_of(trajectory: Trajectory, turns: Sequence[Turn], scored: Scored, needs_calls: bool) -> SnapshotRow | str:
    """The row, or the reason (a token) why it cannot be made. `needs_calls`: for an algorithm that needs token ids."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    calls = calls_of(turns, told_turns(trajectory) if is_captured(trajectory, turns) else None)
    if needs_calls and not any(call.trainable for call in calls):
        return NO_TRAINABLE_CALL
    source = trajectory.metadata.source or "client"
    claimed = trajectory.policy.version if trajectory.policy else None
    try:
        row = TrajectoryRow(
            trajectory_id=trajectory.trajectory_id,
            task_key=scored.task_key,
            reward=scored.reward,
            raw_reward=scored.raw_reward,
            baseline=scored.baseline,
            success=trajectory.outcome.status == "success" if trajectory.outcome else None,
            policy_version=calls[0].policy_version if calls else claimed,
            source=source,
            messages=recorded_chat(trajectory, turns),
            tools=offered_tools(trajectory, turns),
            calls=calls,
        )
        encode(row)  # a chat that is nested too deeply has no JSON
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return SnapshotRow(row, RowOrigin((trajectory.trajectory_id,), source))
