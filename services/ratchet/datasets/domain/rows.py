"""One row of a snapshot: a trajectory with everything a learner needs, so that it needs no other store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.datasets.domain.calls import Call, calls_of
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
class Row:
    """The columns of a snapshot, in order; lists are JSON text."""

    trajectory_id: str
    task_key: str
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None
    success: bool | None
    policy_version: int | None
    source: str
    messages: str
    tools: str
    calls: str

    @property
    def origin(self) -> RowOrigin:
        """What the manifest says of it."""
        return RowOrigin((self.trajectory_id,), self.source)


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


def row_of(trajectory: Trajectory, turns: Sequence[Turn], scored: Scored, recipe: Recipe) -> Row | str:
    """The row, or the reason (a token) why there can be none."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    calls = calls_of(turns, told_turns(trajectory) if is_captured(trajectory, turns) else None)
    if recipe.needs_calls and not any(call.trainable for call in calls):
        return NO_TRAINABLE_CALL
    try:
        chat = json_text(recorded_chat(trajectory, turns))
        tools = json_text(offered_tools(trajectory, turns))
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return Row(
        trajectory_id=trajectory.trajectory_id,
        task_key=scored.task_key,
        reward=TRANSFORMS[recipe.transform](scored.raw_reward),
        raw_reward=scored.raw_reward,
        baseline=scored.baseline,
        success=_success(trajectory),
        policy_version=_policy_version(trajectory, calls),
        source=trajectory.metadata.source or "client",
        messages=chat,
        tools=tools,
        calls=json_text(calls),
    )


def _success(trajectory: Trajectory) -> bool | None:
    return trajectory.outcome.status == "success" if trajectory.outcome else None


def _policy_version(trajectory: Trajectory, calls: Sequence[Call]) -> int | None:
    """The policy of the first call; a claim counts where there are no calls."""
    if calls:
        return calls[0].policy_version
    return trajectory.policy.version if trajectory.policy else None


def json_text(value: object) -> str:
    """A value as it stands in a column."""
    return msgspec.json.encode(value).decode()
