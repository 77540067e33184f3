"""From the entries of a trajectory to its chat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import cast

from ratchet.bus.message import JsonObject
from ratchet.core.contract.trajectory import Observation, Trajectory, TrajectoryTurn
from ratchet.core.rules.chat.format import Messages, call_id, is_chat, json_object, json_text, refuses_endless_nesting

_OBSERVED = {"user_message": "user", "system_message": "system"}
_RESULT_TYPES = {"tool_result", "subordinate_response"}
_CALL_TYPES = {"tool_call": "tool", "subordinate_call": "call_subordinate", "memory_update": "memory_update"}
"""Action types that are a call -> the name of the tool where the action gives none."""


def chat_messages(trajectory: Trajectory) -> Messages:
    """The chat of a trajectory, of any source: from the system prompt to the last answer and its tool results.

    Raises `ChatError` for a trajectory that holds a value without JSON (text that is no Unicode).
    """
    return [message for message, _ in messages_with_calls(trajectory.task_context.instructions, trajectory.turns)]


@refuses_endless_nesting()
def messages_with_calls(instructions: str, entries: Sequence[TrajectoryTurn]) -> list[tuple[JsonObject, str | None]]:
    """The chat of a trajectory's instructions and entries, each answer with the id of its model call where it is known.

    Raises `ChatError`, as `chat_messages` does.
    """
    messages: list[tuple[JsonObject, str | None]] = []
    if instructions and not (entries and _listed(entries[0].observation)):
        messages.append(({"role": "system", "content": instructions}, None))
    previous: list[TrajectoryTurn] = []
    for _, of_call in groupby(entries, key=lambda turn: turn.turn_ref or f"turn {turn.turn_id}"):
        group = list(of_call)
        messages += [(message, None) for message in _between(previous, group[0].observation)]
        messages.append((answer_of(group), group[0].turn_ref))
        previous = group
    return messages + [(message, None) for message in results_of(previous)]


def answer_of(group: Sequence[TrajectoryTurn]) -> JsonObject:
    """The assistant message that the entries of one model call came from."""
    whole = json_object(group[0].action.raw_response or "")
    if whole is not None and whole.get("role") == "assistant" and is_chat([whole]):
        return whole
    calls: Messages = []
    texts: list[str] = []
    for turn in group:
        action = turn.action
        if action.type in _CALL_TYPES:
            function = {"name": _tool_name(turn), "arguments": json_text(action.tool_args or {})}
            calls.append({"id": call_id(turn.turn_id), "type": "function", "function": function})
        elif action.raw_response is not None:
            texts.append(action.raw_response)
        else:  # the tool argument that held the answer, else the output
            written: object = (action.tool_args or {}).get("text", turn.result.output)
            texts.append(written if isinstance(written, str) else "")
    if not calls:
        return {"role": "assistant", "content": "\n".join(texts)}
    thoughts = [thought for turn in group for thought in turn.thought_process or []]
    return {"role": "assistant", "content": "\n".join(texts or thoughts) or None, "tool_calls": calls}


def results_of(group: Sequence[TrajectoryTurn]) -> Messages:
    """The tool messages that answer the calls of one model call."""
    callers = [turn for turn in group if turn.action.type in _CALL_TYPES]
    outcomes = [(turn, turn.result.error if turn.result.output is None else turn.result.output) for turn in callers]
    return [_tool_message(turn, _content(outcome)) for turn, outcome in outcomes if outcome is not None]


def _between(previous: Sequence[TrajectoryTurn], observation: Observation) -> Messages:
    """The messages after the answer of `previous` and before the next one, whose first entry has `observation`."""
    listed = _listed(observation)
    if listed is not None:
        return listed
    results = results_of(previous)
    content = _content(observation.content)
    if observation.type not in _RESULT_TYPES:
        return [*results, {"role": _OBSERVED.get(observation.type, "user"), "content": content}]
    if results:
        return results
    callers = [turn for turn in previous if turn.action.type in _CALL_TYPES]
    return [_tool_message(callers[-1], content) if callers else {"role": "user", "content": content}]


def _listed(observation: Observation) -> Messages | None:
    """The messages that an observation lists as `{"messages": [...]}`."""
    content = observation.content
    messages: object = content.get("messages") if isinstance(content, dict) and len(content) == 1 else None
    is_listed = isinstance(messages, list) and is_chat(cast("list[object]", messages))
    return cast("Messages", messages) if is_listed else None


def _tool_message(turn: TrajectoryTurn, content: str | list[JsonObject]) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id(turn.turn_id), "name": _tool_name(turn), "content": content}


def _content(value: str | JsonObject | list[JsonObject]) -> str | list[JsonObject]:
    """Text or parts as they are, any other object as JSON text."""
    if isinstance(value, dict):
        parts: object = value.get("content") if len(value) == 1 else None
        return cast("list[JsonObject]", parts) if isinstance(parts, list) else json_text(value)
    return value


def _tool_name(turn: TrajectoryTurn) -> str:
    return turn.action.tool_name or _CALL_TYPES[turn.action.type]
