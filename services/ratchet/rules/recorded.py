"""What a stored trajectory and its gateway turns record: the chat, the tools that were offered, the token ids."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

from ratchet.bus.message import JsonObject
from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.rules.chat import chat_messages, chat_of_turns


def is_captured(trajectory: Trajectory, turns: Sequence[Turn]) -> bool:
    """Whether the trajectory was assembled from gateway turns, which then record it best."""
    assembled = trajectory.metadata.source == "assembled"
    refs = turn_refs(trajectory)
    return assembled or any(turn.turn_id in refs for turn in turns)


def turn_refs(trajectory: Trajectory) -> frozenset[str]:
    """The model calls that the trajectory's entries refer to."""
    return frozenset(turn.turn_ref for turn in trajectory.turns if turn.turn_ref)


def lacks_turns(trajectory: Trajectory, turns: Sequence[Turn]) -> bool:
    """Whether the trajectory was assembled from turns that are not (yet) among `turns`."""
    missing = turn_refs(trajectory) - {turn.turn_id for turn in turns}
    return is_captured(trajectory, turns) and bool(missing)


def recorded_chat(trajectory: Trajectory, turns: Sequence[Turn]) -> list[JsonObject]:
    """The chat from the system prompt to the last answer. Raises `ChatError`."""
    return chat_of_turns(turns) if is_captured(trajectory, turns) else chat_messages(trajectory)


def in_call_order(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of one trajectory in the order of their calls."""
    return sorted(turns, key=lambda turn: (turn.index, turn.attempt, turn.timestamp, turn.turn_id))


def offered_tools(trajectory: Trajectory, turns: Iterable[Turn]) -> list[JsonObject]:
    """The tools that were offered last: by the turns, else by the task."""
    offered = last_tools(in_call_order(turns))
    return offered if offered is not None else trajectory.task_context.tools or []


def last_tools(calls: Sequence[Turn]) -> list[JsonObject] | None:
    """The tools that these calls, in their order, offered last: a call carries its tools only when they changed."""
    return next((turn.tools for turn in reversed(calls) if turn.tools is not None), None)


def ids_digest(ids: Sequence[int]) -> str:
    """sha256 of token ids as little-endian int32: `PromptTokens.prefix_digest`, by which a delta is verified."""
    words = array("i", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words.tobytes()).hexdigest()
