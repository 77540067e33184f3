"""Chat and trajectory: one mapping between OpenAI messages and the turns of a trajectory, in both directions.

An assistant message becomes one entry (`TrajectoryTurn`) per tool call, or one entry when it calls none. Entries of one
message share `turn_ref`, the id of their model call. The observation of the first entry is what came before the
message; a tool's result is the `result.output` of the entry that called it.

`chat_messages` gives back the chat that `trajectory_turns` read, but for these differences, none of which is text
that a policy could learn from:

- messages after the last assistant message are dropped (nothing follows from them), except results of its own calls;
- tool call ids are renamed to `call_<turn_id>`, consistently in calls and results;
- a tool result always carries the tool's name, and null content of a result reads as "";
- members that are null or an empty list are dropped (`refusal: null`), but `content: null` of the assistant stays;
- the legacy `function_call` and role `function` read as a tool call and its result;
- arguments given as an object instead of text read as compact JSON.

What the fields of an entry cannot express is kept beside them: an assistant message as JSON in `action.raw_response`
(arguments that are not compact JSON, content parts, further members), and unusual messages before it as
`{"messages": [...]}` in `observation.content` (several at once, results out of order, developer messages).

Agents and models write what they like. Text that looks like one of these two, but is none that can be read (broken,
nested more than `MAX_DEPTH` levels deep, members of other types), is text; everything else that breaks the format is a
`ChatError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject, decode, named_id
from ratchet.contract.trajectory import Action, Observation, Trajectory, TrajectoryTurn, TurnResult
from ratchet.contract.turn import Turn

Messages = list[JsonObject]

_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_OBSERVED = {"user_message": "user", "system_message": "system"}
_OBSERVATION_TYPES = {"user": "user_message", "tool": "tool_result"}
_RESULT_TYPES = {"tool_result", "subordinate_response"}
_CALL_TYPES = {"tool_call": "tool", "subordinate_call": "call_subordinate", "memory_update": "memory_update"}
"""Action types that are a call -> the name of the tool where the action gives none."""
_LEGACY_ID = "function_call"
MAX_DEPTH = 100
"""Deepest nesting of JSON inside a text that is read; agents' messages have less than ten levels."""


class ChatError(ValueError):
    """A chat breaks the OpenAI format; `str(error)` says at which message and why."""


@dataclass(frozen=True, slots=True)
class Call:
    """The model call that an assistant message came from."""

    turn_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An assistant message, its place in the chat, and what came since the previous one."""

    before: Messages
    said: JsonObject
    index: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an assistant message stands: number of its first entry, its time, the id of its model call."""

    first: int
    at: datetime
    ref: str | None


def trajectory_turns(
    messages: Sequence[JsonObject], *, started_at: datetime, calls: Mapping[int, Call] | None = None
) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions (system prompt) and the entries of a chat; no entries when the assistant never spoke.

    `calls` names the model calls by the index of their answer in `messages`. Entries take id and time from there;
    where there is none, the time is that of the entry before (at first `started_at`). Raises `ChatError`.
    """
    with _shallow():
        return _trajectory_turns(messages, started_at, calls or {})


def _trajectory_turns(
    messages: Sequence[JsonObject], started_at: datetime, calls: Mapping[int, Call]
) -> tuple[str, list[TrajectoryTurn]]:
    exchanges, rest = _exchanges([_normal(message, index) for index, message in enumerate(messages)])
    if not exchanges:
        return "", []
    instructions, before = _head(exchanges[0].before)
    following = [exchange.before for exchange in exchanges[1:]] + [rest]
    turns: list[TrajectoryTurn] = []
    results: Messages = []
    at = started_at
    for exchange, raw_after in zip(exchanges, following, strict=True):
        call = calls.get(exchange.index)
        at = call.at if call else at
        place = _Place(len(turns) + 1, at, call.turn_id if call else None)
        said, after = _relinked(exchange.said, raw_after, place.first)
        entries = _entries(said, _observation(before, results), after, place)
        turns += entries
        results, before = _results(entries), after
    return instructions, turns


def chat_messages(trajectory: Trajectory) -> Messages:
    """The chat of a trajectory, of any source: from the system prompt to the last answer and its tool results.

    Raises `ChatError` for a trajectory that holds what JSON cannot (text that is no Unicode).
    """
    with _shallow():
        return _chat_messages(trajectory)


def _chat_messages(trajectory: Trajectory) -> Messages:
    groups = [list(group) for _, group in groupby(trajectory.turns, key=_group_key)]
    messages: Messages = []
    if trajectory.task_context.instructions and not _explicit(trajectory.turns[0].observation):
        messages.append({"role": "system", "content": trajectory.task_context.instructions})
    previous: list[TrajectoryTurn] = []
    for group in groups:
        messages += _before(group[0].observation, previous)
        messages.append(_said(group))
        previous = group
    return messages + _results(previous)


def chain_of_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The calls that lead to the trajectory's end, first to last.

    Calls form a forest by `parent_turn_id`. The longest conversation in it is the trajectory (the later one of equal
    length); calls beside it are retries, abandoned branches, or side questions. Raises `ChatError` when a parent of the
    chosen chain is missing.
    """
    answered = {turn.turn_id: turn for turn in turns if turn.response is not None}
    chains = [list(_ancestry(turn, answered)) for turn in answered.values()]
    if not chains:
        return []
    chain = max(chains, key=_length_then_recency)
    root = chain[-1]
    if root.parent_turn_id is not None:
        raise ChatError(f"turn {root.turn_id} continues turn {root.parent_turn_id}, which is not there")
    return chain[::-1]


def chat_of_turns(turns: Sequence[Turn]) -> Messages:
    """The chat that a trajectory's gateway turns add up to, ending with the last answer. Raises `ChatError`."""
    chat = [message for turn in chain_of_turns(turns) for message in _exchange_of(turn)]
    for index, message in enumerate(chat):
        _normal(message, index)
    return chat


def assembled_turns(turns: Sequence[Turn]) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions and entries of a trajectory known only by its gateway turns. Raises `ChatError`."""
    calls: dict[int, Call] = {}
    messages: Messages = []
    chain = chain_of_turns(turns)
    for turn in chain:
        messages += _exchange_of(turn)
        calls[len(messages) - 1] = Call(turn.turn_id, turn.timestamp)
    if not chain:
        return "", []
    return trajectory_turns(messages, started_at=chain[0].timestamp, calls=calls)


# From a chat to entries


def _normal(message: JsonObject, index: int) -> JsonObject:
    """`message` without empty members, in the current form of the format."""
    role: object = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ChatError(f"message {index} has the role {role!r}")
    normal = {name: value for name, value in message.items() if value is not None and value != []}
    normal["content"] = _normal_content(message.get("content"), index)
    if isinstance(normal.get("tool_call_id"), dict | list):
        raise ChatError(f"message {index} has a tool_call_id that is not text")
    if role == "function":
        normal |= {"role": "tool", "tool_call_id": _LEGACY_ID}
    if role == "assistant":
        return _normal_answer(normal, index)
    if normal["content"] is None:
        normal["content"] = ""
    return normal


def _normal_content(content: object, index: int) -> str | list[JsonObject] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"message {index} has content that is neither text nor a list of parts")
    parts = cast("list[object]", content)
    normal = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    if not all(isinstance(part, dict) for part in normal):
        raise ChatError(f"message {index} has a content part that is not an object")
    return cast("list[JsonObject]", normal)


def _normal_answer(message: JsonObject, index: int) -> JsonObject:
    legacy = message.pop("function_call", None)
    if legacy is not None:
        message["tool_calls"] = [{"id": _LEGACY_ID, "type": "function", "function": legacy}]
    if "tool_calls" in message:
        calls = message["tool_calls"]
        if not isinstance(calls, list):
            raise ChatError(f"message {index} has tool_calls that are not a list")
        message["tool_calls"] = [_normal_call(call, index) for call in cast("list[object]", calls)]
    return message


def _normal_call(call: object, index: int) -> JsonObject:
    if not isinstance(call, dict):
        raise ChatError(f"message {index} has a tool call that is not an object")
    normal = {"type": "function", **cast("JsonObject", call)}
    kind = normal["type"]
    called: Any = normal.get(kind) if isinstance(kind, str) else None
    if not isinstance(called, dict) or not isinstance(cast("JsonObject", called).get("name"), str):
        raise ChatError(f"message {index} has a tool call without a function name")
    if kind == "function":
        arguments: object = cast("JsonObject", called).get("arguments")
        text = arguments if isinstance(arguments, str) else _json_text(arguments or {})
        normal["function"] = {**cast("JsonObject", called), "arguments": text}
    return normal


def _exchanges(chat: Messages) -> tuple[list[_Exchange], Messages]:
    """`chat` cut after each assistant message, and the messages after the last one."""
    exchanges: list[_Exchange] = []
    before: Messages = []
    for index, message in enumerate(chat):
        if message["role"] == "assistant":
            exchanges.append(_Exchange(before, message, index))
            before = []
        else:
            before.append(message)
    return exchanges, before


def _head(before: Messages) -> tuple[str, Messages]:
    """The instructions, and the messages of the head that they do not stand for."""
    told = next((message for message in before if message["role"] in {"system", "developer"}), None)
    if told is None:
        return "", before
    instructions = text_of(told["content"])
    stands_for_itself = told == {"role": "system", "content": instructions} and instructions != ""
    if stands_for_itself and told is before[0] and [_is_plain_user(message) for message in before[1:]] == [True]:
        return instructions, before[1:]
    return instructions, before


def _relinked(said: JsonObject, following: Messages, first: int) -> tuple[JsonObject, Messages]:
    """The answer and the messages after it, with call ids that follow from the numbers of the entries."""
    calls: Messages = said.get("tool_calls", [])
    waiting = [(call.get("id"), _call_id(first + place), _called(call)[0]) for place, call in enumerate(calls)]
    if calls:
        said = {**said, "tool_calls": [{**call, "id": link[1]} for call, link in zip(calls, waiting, strict=True)]}
    linked: Messages = []
    for message in following:
        is_result = message["role"] == "tool"
        link = next((link for link in waiting if is_result and link[0] == message.get("tool_call_id")), None)
        if link is not None:
            waiting.remove(link)
            message = {**message, "tool_call_id": link[1], "name": link[2]}  # noqa: PLW2901 - the linked message
        linked.append(message)
    return said, linked


def _observation(before: Messages, results: Messages) -> Observation:
    """What the agent saw: the results of its own calls, a user's message, or whatever else came before it spoke."""
    extra = before[len(results) :] if before[: len(results)] == results else None
    if extra == [] and results:
        return Observation(type="tool_result", content=results[-1]["content"])
    if extra is not None and [_is_plain_user(message) for message in extra] == [True]:
        return Observation(type="user_message", content=extra[0]["content"])
    kind = _OBSERVATION_TYPES.get(before[-1]["role"], "system_message") if before else "system_message"
    return Observation(type=kind, content={"messages": before})


def _entries(said: JsonObject, observation: Observation, following: Messages, place: _Place) -> list[TrajectoryTurn]:
    """One entry per tool call of `said`, or one for the answer itself."""
    actions = _actions(said)
    answers = {message.get("tool_call_id"): message["content"] for message in following if message["role"] == "tool"}
    # A model call that is not known needs an id only to hold its entries together.
    ref = place.ref or (named_id("parallel calls", place.first) if len(actions) > 1 else None)
    sibling = Observation(type=observation.type, content="")
    entries = [
        TrajectoryTurn(
            turn_id=place.first + number,
            timestamp=place.at,
            observation=sibling if number else observation,
            action=action,
            result=_result(action, answers.get(_call_id(place.first + number))),
            turn_ref=ref,
        )
        for number, action in enumerate(actions)
    ]
    text = said["content"] if "tool_calls" in said else said.get("reasoning_content")
    thoughts = [text] if isinstance(text, str) and text else None
    entries[0] = msgspec.structs.replace(entries[0], thought_process=thoughts)
    if _said(entries) == said:
        return entries
    whole = msgspec.structs.replace(actions[0], raw_response=_json_text(said))
    return [msgspec.structs.replace(entries[0], action=whole), *entries[1:]]


def _actions(said: JsonObject) -> list[Action]:
    if "tool_calls" not in said:
        return [Action(type="response", raw_response=text_of(said["content"]))]
    called = [_called(call) for call in said["tool_calls"]]
    return [Action(type="tool_call", tool_name=name, tool_args=_parsed(text)) for name, text in called]


def _result(action: Action, content: str | list[JsonObject] | None) -> TurnResult:
    """The format does not say whether a tool succeeded, only whether it answered."""
    if action.type == "response":
        return TurnResult(success=True)
    return TurnResult(
        success=content is not None, output={"content": content} if isinstance(content, list) else content
    )


def _called(call: JsonObject) -> tuple[str, str]:
    """Name and argument text of a (normal) call; a custom tool's input is its text."""
    called: JsonObject = call[call["type"]]
    return called["name"], str(called.get("arguments", called.get("input", "")))


def _parsed(arguments: str) -> JsonObject | None:
    parsed = _json(arguments)
    return cast("JsonObject", parsed) if isinstance(parsed, dict) else None


# From entries to a chat


def _group_key(turn: TrajectoryTurn) -> str:
    """Equal for the entries of one model call."""
    return turn.turn_ref or f"turn {turn.turn_id}"


def _before(observation: Observation, previous: Sequence[TrajectoryTurn]) -> Messages:
    """The messages between the entries `previous` and the next answer, which began with `observation`."""
    explicit = _explicit(observation)
    if explicit is not None:
        return explicit
    results = _results(previous)
    content = _content(observation.content)
    if observation.type not in _RESULT_TYPES:
        return [*results, {"role": _OBSERVED.get(observation.type, "user"), "content": content}]
    if results:
        return results
    callers = [turn for turn in previous if turn.action.type in _CALL_TYPES]
    return [_tool_message(callers[-1], content) if callers else {"role": "user", "content": content}]


def _explicit(observation: Observation) -> Messages | None:
    """The messages that an observation spells out."""
    content = observation.content
    messages: object = content.get("messages") if isinstance(content, dict) and len(content) == 1 else None
    return (
        cast("Messages", messages) if isinstance(messages, list) and _is_chat(cast("list[object]", messages)) else None
    )


def _said(group: Sequence[TrajectoryTurn]) -> JsonObject:
    """The assistant message that the entries of one model call came from."""
    whole = _json(group[0].action.raw_response or "")
    if isinstance(whole, dict) and cast("JsonObject", whole).get("role") == "assistant" and _is_chat([whole]):
        return cast("JsonObject", whole)
    calls = [_tool_call(turn) for turn in group if turn.action.type in _CALL_TYPES]
    texts = [_answer_text(turn) for turn in group if turn.action.type not in _CALL_TYPES]
    if not calls:
        return {"role": "assistant", "content": "\n".join(texts)}
    thoughts = [thought for turn in group for thought in turn.thought_process or []]
    return {"role": "assistant", "content": "\n".join(texts or thoughts) or None, "tool_calls": calls}


def _answer_text(turn: TrajectoryTurn) -> str:
    """What the agent answered: as it was written, else the tool argument that held it, else what came out."""
    if turn.action.raw_response is not None:
        return turn.action.raw_response
    written: object = (turn.action.tool_args or {}).get("text", turn.result.output)
    return written if isinstance(written, str) else ""


def _tool_call(turn: TrajectoryTurn) -> JsonObject:
    arguments = _json_text(turn.action.tool_args or {})
    function = {"name": _tool_name(turn), "arguments": arguments}
    return {"id": _call_id(turn.turn_id), "type": "function", "function": function}


def _results(group: Sequence[TrajectoryTurn]) -> Messages:
    """The tool messages that answer the calls of one model call."""
    callers = [turn for turn in group if turn.action.type in _CALL_TYPES]
    outcomes = [(turn, turn.result.error if turn.result.output is None else turn.result.output) for turn in callers]
    return [_tool_message(turn, _content(outcome)) for turn, outcome in outcomes if outcome is not None]


def _tool_message(turn: TrajectoryTurn, content: str | list[JsonObject]) -> JsonObject:
    return {"role": "tool", "tool_call_id": _call_id(turn.turn_id), "name": _tool_name(turn), "content": content}


def _content(value: str | JsonObject | list[JsonObject]) -> str | list[JsonObject]:
    """Text or parts as they are, any other object as JSON text."""
    if isinstance(value, dict):
        parts: object = value.get("content") if len(value) == 1 else None
        return cast("list[JsonObject]", parts) if isinstance(parts, list) else _json_text(value)
    return value


# Both ways


def text_of(content: object) -> str:
    """The text of a message's content: itself, or its text parts joined."""
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = [cast("JsonObject", part).get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _call_id(turn_id: int) -> str:
    return f"call_{turn_id}"


def _tool_name(turn: TrajectoryTurn) -> str:
    return turn.action.tool_name or _CALL_TYPES[turn.action.type]


def _is_plain_user(message: JsonObject) -> bool:
    return message["role"] == "user" and len(message) == 2


def _is_chat(messages: Sequence[object]) -> bool:
    """Whether these are messages of a chat, so that every reader of one can read them."""
    try:
        for index, message in enumerate(messages):
            if not isinstance(message, dict):
                return False
            _normal(cast("JsonObject", message), index)
    except ChatError:
        return False
    return True


def _json(text: str) -> object:
    """`text` read as JSON, None where it is not, or is nested too deeply for its next reader."""
    if not text.startswith("{"):
        return None
    try:
        parsed: object = decode(text)
    except msgspec.DecodeError:
        return None
    return None if _is_deep(parsed) else parsed


def _is_deep(value: object) -> bool:
    """Whether JSON is nested more than `MAX_DEPTH` levels deep. Level by level: depth costs no stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("JsonObject", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _json_text(value: object) -> str:
    """`value` as JSON. Raises `ChatError` for what no JSON holds: text that is no Unicode, endless numbers, objects."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeError, OverflowError, TypeError) as error:
        raise ChatError(f"is not JSON: {type(error).__name__}") from error


@contextmanager
def _shallow() -> Iterator[None]:
    """Messages that are nested for ever break the format: nobody can compare or write them."""
    try:
        yield
    except RecursionError as error:
        raise ChatError("nested too deeply") from error


# Gateway turns


def _ancestry(turn: Turn, answered: Mapping[str, Turn]) -> Iterator[Turn]:
    """`turn`, its parent, and so on to the root or to a parent that is not there."""
    seen: set[str] = set()
    current: Turn | None = turn
    while current is not None and current.turn_id not in seen:
        seen.add(current.turn_id)
        yield current
        current = answered.get(current.parent_turn_id or "")


def _length_then_recency(chain: Sequence[Turn]) -> tuple[int, int, int, datetime, str]:
    last = chain[0]
    length = sum(len(turn.messages) + 1 for turn in chain)
    return length, last.index, last.attempt, last.timestamp, last.turn_id


def _exchange_of(turn: Turn) -> Messages:
    return [*turn.messages, {"role": "assistant", **(turn.response or {})}]
