"""Messages of OpenAI's chat format, in its current form, and the JSON that texts in them may spell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject, decode

Messages = list[JsonObject]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
LEGACY_ID = "function_call"
"""The id of a legacy call, which has none."""
MAX_DEPTH = 100
"""Deepest nesting of JSON inside a text that is read; agents' messages have less than ten levels."""


class ChatError(ValueError):
    """A chat breaks the OpenAI format; `str(error)` says at which message and why."""


@contextmanager
def refuses_endless_nesting() -> Iterator[None]:
    """Raises `ChatError` for messages that are nested too deeply to be compared or written."""
    try:
        yield
    except RecursionError as error:
        raise ChatError("nested too deeply") from error


def normal(written: object, index: int) -> JsonObject:
    """A message without empty members, in the current form of the format. Raises `ChatError`, which names `index`."""
    if not isinstance(written, dict):
        raise ChatError(f"message {index} is not an object")
    message = cast("JsonObject", written)
    role: object = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ChatError(f"message {index} has the role {role!r}")
    members = {name: value for name, value in message.items() if value is not None and value != []}
    members["content"] = _normal_content(message.get("content"), index)
    if isinstance(members.get("tool_call_id"), dict | list):
        raise ChatError(f"message {index} has a tool_call_id that is not text")
    if role == "function":
        members |= {"role": "tool", "tool_call_id": LEGACY_ID}
    if role == "assistant":
        return _with_normal_calls(members, index)
    if members["content"] is None:
        members["content"] = ""
    return members


def is_chat(messages: Sequence[object]) -> bool:
    """Whether these are messages of a chat, so that every reader of one can read them."""
    try:
        for index, message in enumerate(messages):
            normal(message, index)
    except ChatError:
        return False
    return True


def text_of(content: object) -> str:
    """The text of a message's content: itself, or its text parts joined."""
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = [cast("JsonObject", part).get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def last_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message that the policy wrote; empty when it wrote none."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    return text_of(answers[-1].get("content")) if answers else ""


def call_id(turn_id: int) -> str:
    """The id of the call that an entry holds."""
    return f"call_{turn_id}"


def json_object(text: str) -> JsonObject | None:
    """The object that `text` spells; None for any other text, and for one nested deeper than `MAX_DEPTH`."""
    if not text.startswith("{"):
        return None
    try:
        parsed: object = decode(text)
    except msgspec.DecodeError:
        return None
    return cast("JsonObject", parsed) if is_within(parsed, MAX_DEPTH) else None


def is_within(value: object, levels: int) -> bool:
    """Whether JSON is nested at most so many levels deep; its depth costs no stack."""
    level = [value]
    for _ in range(levels):
        inner: list[object] = []
        for part in level:
            if isinstance(part, dict):
                inner += cast("JsonObject", part).values()
            elif isinstance(part, list):
                inner += cast("list[object]", part)
        level = inner
        if not level:
            return True
    return False


def json_text(value: object) -> str:
    """`value` as JSON. Raises `ChatError` for a value without JSON: text that is no Unicode, infinities, objects."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeError, OverflowError, TypeError) as error:
        raise ChatError(f"is not JSON: {type(error).__name__}") from error


def _normal_content(content: object, index: int) -> str | list[JsonObject] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | dict):
        raise ChatError(f"message {index} has content that is neither text nor a list of parts")
    parts = cast("list[object]", content if isinstance(content, list) else [content])
    objects = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    if not all(isinstance(part, dict) for part in objects):
        raise ChatError(f"message {index} has a content part that is not an object")
    return cast("list[JsonObject]", objects)


def _with_normal_calls(message: JsonObject, index: int) -> JsonObject:
    legacy = message.pop("function_call", None)
    calls = message.get("tool_calls", [])
    if legacy is not None:
        calls = [{"id": LEGACY_ID, "type": "function", "function": legacy}]
    if not isinstance(calls, list):
        raise ChatError(f"message {index} has tool_calls that are not a list")
    normal_calls: Messages = []
    for call in cast("list[object]", calls):
        if not isinstance(call, dict):
            raise ChatError(f"message {index} has a tool call that is not an object")
        members = {"type": "function", **cast("JsonObject", call)}
        kind = members["type"]
        called: Any = members.get(kind) if isinstance(kind, str) else None
        if not isinstance(called, dict) or not isinstance(cast("JsonObject", called).get("name"), str):
            raise ChatError(f"message {index} has a tool call without a function name")
        if kind == "function":
            arguments: object = cast("JsonObject", called).get("arguments")
            text = arguments if isinstance(arguments, str) else json_text(arguments or {})
            members["function"] = {**cast("JsonObject", called), "arguments": text}
        normal_calls.append(members)
    return {**message, "tool_calls": normal_calls} if normal_calls else message
