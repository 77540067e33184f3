"""From a chat to the entries of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ratchet.bus.message import JsonObject, named_id
from ratchet.core.contract.trajectory import Action, Observation, TrajectoryTurn, TurnResult
from ratchet.core.rules.chat.format import (
    Messages,
    call_id,
    json_object,
    json_text,
    normal,
    refuses_endless_nesting,
    text_of,
)
from ratchet.core.rules.chat.to_messages import answer_of, results_of

_OBSERVATION_TYPES = {"user": "user_message", "tool": "tool_result"}


@dataclass(frozen=True, slots=True)
class Call:
    """The model call that an assistant message came from."""

    turn_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An assistant message, its index in the chat, and the messages since the previous one."""

    before: Messages
    answer: JsonObject
    index: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an assistant message stands: number of its first entry, its time, the id of its model call."""

    first: int
    at: datetime
    ref: str | None


@refuses_endless_nesting()
def trajectory_turns(
    messages: Sequence[JsonObject],
    *,
    started_at: datetime,
    calls: Mapping[int, Call] | None = None,
    entries_before: int = 0,
) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions (system prompt) and the entries of a chat; no entries when the assistant never spoke.

    `calls` names the model calls by the index of their answer in `messages`. Entries take id and time from there;
    without a call, the time is that of the entry before (at first `started_at`). `entries_before`: how many entries the
    trajectory has of chats before this one, which then has no instructions of its own. Raises `ChatError`.
    """
    exchanges: list[_Exchange] = []
    since: Messages = []
    for index, written in enumerate(messages):
        message = normal(written, index)
        if message["role"] == "assistant":
            exchanges.append(_Exchange(since, message, index))
            since = []
        else:
            since.append(message)
    if not exchanges:
        return "", []
    instructions, before = ("", exchanges[0].before) if entries_before else _head(exchanges[0].before)
    following = [*(exchange.before for exchange in exchanges[1:]), since]
    turns: list[TrajectoryTurn] = []
    results: Messages = []
    at = started_at
    for exchange, raw_after in zip(exchanges, following, strict=True):
        call = (calls or {}).get(exchange.index)
        at = call.at if call else at
        place = _Place(entries_before + len(turns) + 1, at, call.turn_id if call else None)
        answer, after = _relinked(exchange.answer, raw_after, place.first)
        entries = _entries(answer, _observation(before, results), after, place)
        turns += entries
        results, before = results_of(entries), after
    return instructions, turns


def _head(before: Messages) -> tuple[str, Messages]:
    """The instructions, and the messages before the first answer without those that the instructions stand for."""
    system = next((message for message in before if message["role"] in {"system", "developer"}), None)
    if system is None:
        return "", before
    instructions = text_of(system["content"])
    is_plain = system == {"role": "system", "content": instructions} and instructions != ""
    if is_plain and system is before[0] and [_is_plain_user(message) for message in before[1:]] == [True]:
        return instructions, before[1:]
    return instructions, before


def _relinked(answer: JsonObject, following: Messages, first: int) -> tuple[JsonObject, Messages]:
    """The answer and the messages after it, with call ids that follow from the numbers of the entries."""
    calls: Messages = answer.get("tool_calls", [])
    waiting = [(call.get("id"), call_id(first + place), _called(call)[0]) for place, call in enumerate(calls)]
    if calls:
        answer = {**answer, "tool_calls": [{**call, "id": link[1]} for call, link in zip(calls, waiting, strict=True)]}
    linked: Messages = []
    for message in following:
        is_result = message["role"] == "tool"
        link = next((link for link in waiting if is_result and link[0] == message.get("tool_call_id")), None)
        if link is not None:
            waiting.remove(link)
            message = {**message, "tool_call_id": link[1], "name": link[2]}  # noqa: PLW2901 - the linked message
        linked.append(message)
    return answer, linked


def _observation(before: Messages, results: Messages) -> Observation:
    """What the agent saw: the results of its own calls, a user's message, or any other messages before it spoke."""
    extra = before[len(results) :] if before[: len(results)] == results else None
    if extra == [] and results:
        return Observation(type="tool_result", content=results[-1]["content"])
    if extra is not None and [_is_plain_user(message) for message in extra] == [True]:
        return Observation(type="user_message", content=extra[0]["content"])
    kind = _OBSERVATION_TYPES.get(before[-1]["role"], "system_message") if before else "system_message"
    return Observation(type=kind, content={"messages": before})


def _entries(answer: JsonObject, observation: Observation, following: Messages, place: _Place) -> list[TrajectoryTurn]:
    """One entry per tool call of `answer`, or one for the answer itself."""
    called = [_called(call) for call in answer.get("tool_calls", [])]
    actions = [Action(type="tool_call", tool_name=name, tool_args=json_object(text)) for name, text in called]
    results = {message.get("tool_call_id"): message["content"] for message in following if message["role"] == "tool"}
    # A model call that is not known needs an id only to hold its entries together.
    ref = place.ref or (named_id("parallel calls", place.first) if len(actions) > 1 else None)
    sibling = Observation(type=observation.type, content="")
    entries: list[TrajectoryTurn] = []
    for number, action in enumerate(actions or [Action(type="response", raw_response=text_of(answer["content"]))]):
        output = results.get(call_id(place.first + number)) if actions else None
        entries.append(
            TrajectoryTurn(
                turn_id=place.first + number,
                timestamp=place.at,
                observation=sibling if number else observation,
                action=action,
                # The format does not say whether a tool succeeded, only whether it answered.
                result=TurnResult(
                    success=not actions or output is not None,
                    output={"content": output} if isinstance(output, list) else output,
                ),
                turn_ref=ref,
            )
        )
    text = answer["content"] if actions else answer.get("reasoning_content")
    thoughts = [text] if isinstance(text, str) and text else None
    entries[0] = msgspec.structs.replace(entries[0], thought_process=thoughts)
    if answer_of(entries) != answer:
        whole = msgspec.structs.replace(entries[0].action, raw_response=json_text(answer))
        entries[0] = msgspec.structs.replace(entries[0], action=whole)
    return entries


def _called(call: JsonObject) -> tuple[str, str]:
    """Name and argument text of a (normal) call; a custom tool's input is its text."""
    called: JsonObject = call[call["type"]]
    return called["name"], str(called.get("arguments", called.get("input", "")))


def _is_plain_user(message: JsonObject) -> bool:
    return message["role"] == "user" and len(message) == 2
