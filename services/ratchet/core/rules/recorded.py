"""What a stored trajectory and its gateway turns record: the chat, the tools that were offered, the token ids."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.contract.turn import Applied, Trainable, Turn
from ratchet.core.rules.chat import ChatError, chat_messages, chat_of_turns, conversation_of, readable
from ratchet.core.rules.chat.conversations import Segment


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


def own_turns(trajectory: Trajectory, turns: Sequence[Turn]) -> Sequence[Turn]:
    """Of the turns that were recorded with a trajectory's, its own: a run's id may hold several conversations."""
    refs = turn_refs(trajectory)
    return [turn for turn in turns if turn.turn_id in refs] if is_captured(trajectory, turns) and refs else turns


def recorded_chat(trajectory: Trajectory, turns: Sequence[Turn]) -> list[JsonObject]:
    """The chat from the system prompt to the last answer, as the engine got it. Raises `ChatError`.

    `turns`: all that were recorded with it; a branch's prompts may build on calls of the conversation that it left.
    """
    if not is_captured(trajectory, turns):
        return chat_messages(trajectory)
    last = next((entry.turn_ref for entry in reversed(trajectory.turns) if entry.turn_ref), None)
    return _as_applied(chat_of_turns(turns, last), turns, last) if last else []


def recorded_parts(trajectory: Trajectory, turns: Sequence[Turn]) -> list[tuple[list[JsonObject], int]]:
    """The chats of the trajectory, oldest first, each as the engine got it, with the index from which on it is news.

    The last one is `recorded_chat`. Its agent began each of the others anew, with a shorter history. Raises
    `ChatError`.
    """
    if not is_captured(trajectory, turns):
        return [(chat_messages(trajectory), 0)]
    conversation = conversation_of(turns, [entry.turn_ref for entry in trajectory.turns if entry.turn_ref])
    if conversation is None:
        return []
    parts = [_part(segment, turns) for segment in conversation.segments()]
    return parts if conversation.is_branch else [(parts[0][0], 0), *parts[1:]]


def _part(segment: Segment, turns: Sequence[Turn]) -> tuple[list[JsonObject], int]:
    chat = readable(segment.messages)
    seen = _as_applied(chat, turns, segment.calls[max(segment.calls)].turn_id)
    return seen, segment.own_from + len(seen) - len(chat)


def applied_to(turns: Sequence[Turn], turn_id: str) -> Applied | None:
    """What the policy's bundle made of a call's request: a turn has it only where it differs from that of the call
    which it continues. None where nothing was changed, and where the turn that has it is not there."""
    by_digest = {turn.applied.digest: turn.applied for turn in turns if turn.applied and turn.applied.head is not None}
    call = next((turn for turn in turns if turn.turn_id == turn_id), None)
    return by_digest.get(call.applied.digest) if call is not None and call.applied is not None else None


def _as_applied(chat: list[JsonObject], turns: Sequence[Turn], turn_id: str) -> list[JsonObject]:
    """The chat as the engine got it. Raises `ChatError` where the turn that says so is not there."""
    applied = applied_to(turns, turn_id)
    if applied is not None:
        return [*(applied.head or ()), *chat[applied.replaced or 0 :]]
    if any(turn.turn_id == turn_id and turn.applied is not None for turn in turns):
        raise ChatError(f"what the policy changed of turn {turn_id} stands in another turn, which is not there")
    return chat


def in_call_order(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of one trajectory in the order of their calls."""
    return sorted(turns, key=lambda turn: (turn.index, turn.attempt, turn.timestamp, turn.turn_id))


def offered_tools(trajectory: Trajectory, turns: Sequence[Turn]) -> list[JsonObject]:
    """The tools that the engine was offered last: by the turns, else by the task."""
    calls = in_call_order(own_turns(trajectory, turns))
    for call in reversed(calls):
        applied = applied_to(turns, call.turn_id)
        if applied is not None and applied.tools is not None:
            return applied.tools
        if call.tools_digest is not None:  # its tools stand in the call, or in one that it continues
            return next((turn.tools for turn in turns if turn.tools and turn.tools_digest == call.tools_digest), [])
    offered = last_tools(calls)
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


def without_tokens(turn: Turn, reason: str, redactions: Mapping[str, int] | None = None) -> Turn:
    """A turn that no learner may use: the token ids of a redacted text would decode to the secret."""
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=None,
        output_token_ids=None,
        behavior_logprobs=None,
        logprob_mode=None,
        trainable=Trainable(ok=False, reason=reason),
        redactions=dict(redactions) if redactions else None,
    )
