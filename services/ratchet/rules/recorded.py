"""A stored trajectory as text: its chat and the tools it was offered, told by its gateway turns where there are any."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.bus.message import JsonObject
from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.rules.chat import chat_messages, chat_of_turns


def is_captured(trajectory: Trajectory, turns: Sequence[Turn]) -> bool:
    """Whether the trajectory was assembled from gateway turns, so that these tell it best."""
    assembled = trajectory.metadata.source == "assembled"
    refs = {turn.turn_ref for turn in trajectory.turns}
    return assembled or any(turn.turn_id in refs for turn in turns)


def told_turns(trajectory: Trajectory) -> frozenset[str]:
    """The model calls that the trajectory's entries refer to."""
    return frozenset(turn.turn_ref for turn in trajectory.turns if turn.turn_ref)


def lacks_turns(trajectory: Trajectory, turns: Sequence[Turn]) -> bool:
    """Whether turns that the trajectory was assembled from are not (yet) among `turns`."""
    missing = told_turns(trajectory) - {turn.turn_id for turn in turns}
    return is_captured(trajectory, turns) and bool(missing)


def recorded_chat(trajectory: Trajectory, turns: Sequence[Turn]) -> list[JsonObject]:
    """The chat from the system prompt to the last answer. Raises `ChatError`."""
    return chat_of_turns(turns) if is_captured(trajectory, turns) else chat_messages(trajectory)


def offered_tools(trajectory: Trajectory, turns: Sequence[Turn]) -> list[JsonObject]:
    """The tools that were offered last."""
    called = sorted(turns, key=lambda turn: (turn.index, turn.attempt, turn.timestamp, turn.turn_id))
    offered = last_tools(called)
    return offered if offered is not None else trajectory.task_context.tools or []


def last_tools(called: Sequence[Turn]) -> list[JsonObject] | None:
    """The tools that were told last in these calls: a call tells them when they have changed."""
    return next((turn.tools for turn in reversed(called) if turn.tools is not None), None)
