"""How many model calls trajectories of a task type took: a fold over RL_TRAJECTORIES, read as of any recent sequence.

A task type is the role and the task's domain (`task_context.domain`, `none` where there is none).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import groupby

from ratchet.kernel.received import Received
from ratchet.messages import Message, Trajectory, Value, named_id
from ratchet.messages.trajectory import TrajectoryTurn
from ratchet.reward_computer.domain.window import Stats, stats_of

CAPACITY = 2000
"""Entries kept: a window of 1,000 can be read as of any of the last 1,000 trajectories of the task type."""


class TurnHistory(Value, frozen=True, kw_only=True):
    """The newest trajectories of one task type in stream order, as columns."""

    sequences: list[int]
    calls: list[int]
    marks: list[str]
    """Ends of their ids: the same trajectory published again does not count again."""

    def before(self, sequence: int, window: int) -> Stats:
        """Calls per trajectory among the last `window` trajectories published before `sequence`."""
        end = bisect_left(self.sequences, sequence)
        return stats_of(self.calls[max(0, end - window) : end])


EMPTY = TurnHistory(sequences=[], calls=[], marks=[])


def task_type(received: Received[Message]) -> str | None:
    """The key of a trajectory's history."""
    message = received.message
    return history_key(message) if isinstance(message, Trajectory) else None


def history_key(trajectory: Trajectory) -> str:
    """`<role>.<domain>`; a domain that is not a plain word becomes a digest, since keys take few characters."""
    domain = trajectory.task_context.domain or "none"
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", domain)
    return f"{trajectory.role}.{domain if plain else named_id('domain', domain)}"


def add_trajectory(history: TurnHistory | None, received: Received[Message]) -> TurnHistory:
    """The history with one more trajectory."""
    past, trajectory = history or EMPTY, received.message
    if not isinstance(trajectory, Trajectory):
        return past
    mark = trajectory.trajectory_id.replace("-", "")[-8:]
    if mark in past.marks:
        return past
    return TurnHistory(
        sequences=[*past.sequences, received.sequence][-CAPACITY:],
        calls=[*past.calls, model_calls(trajectory)][-CAPACITY:],
        marks=[*past.marks, mark][-CAPACITY:],
    )


def model_calls(trajectory: Trajectory) -> int:
    """How often the model was asked: parallel tool calls come from one answer."""
    return sum(1 for _ in groupby(trajectory.turns, key=_call))


def _call(turn: TrajectoryTurn) -> str:
    return turn.turn_ref or f"turn {turn.turn_id}"
