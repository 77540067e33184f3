"""Where the texts stand that filters see: in requests, whole answers and chunks of streams, of every API alike.

All APIs name what holds text by the same few words, so one walk serves them. It goes by a stack: what is nested deep is
read as all else, and values that hold no text (numbers, null, pictures) are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ratchet.dialects.requests import Body

REQUEST, ANSWER, TOOL_RESULT = "request", "answer", "tool_result"
"""What a text is: of a user, of the model, of a tool. Labels name it so."""
CONVERSATIONS = ("messages", "input", "prompt")
"""Members of requests that hold what was said."""
_PICTURES = frozenset({"image_url", "file_data", "encrypted_content"})
_NOT_SPOKEN = _PICTURES | {"type", "id", "role", "status", "instructions", "tools", "metadata", "logprobs", "token_ids"}
"""Members of an answer that hold ids, or repeat what the agent itself had sent."""
_SPOKEN = frozenset({"content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "delta"})
_CALLED = frozenset({"arguments", "input", "partial_json"})
"""Members of a tool call that hold its arguments, as text or as values."""
_INDEXES = ("index", "output_index", "content_index")


@dataclass(frozen=True, slots=True)
class Place:
    """One text."""

    kind: str
    text: str
    holder: Any
    """The list or object that holds it, which a replacement changes. `Any`: agents and engines write what they like."""
    key: Any
    is_new: bool = True
    """Of a request: nothing has answered it yet."""
    is_fixed: bool = False
    """No other text can stand in its place: it is part of a tool call's arguments, or the agent has begun to get it."""
    path: tuple[object, ...] = ()
    """Of a stream: chunks with the same path continue one another's text."""


def places_of_request(members: Mapping[str, Any]) -> Iterator[Place]:
    """What users and tools say. What the model said is the model's; system prompts are the operator's."""
    for name, spoken in members.items():
        if isinstance(spoken, str):
            yield Place(REQUEST, spoken, members, name)
        if not isinstance(spoken, list):
            continue
        items = cast("list[Any]", spoken)
        answered = max((number for number, item in enumerate(items) if _is_answer(item)), default=-1)
        for number, item in enumerate(items):
            if isinstance(item, str):
                yield Place(REQUEST, item, items, number)
            elif isinstance(item, dict):
                yield from _of_item(cast("Body", item), is_new=number > answered)


def _has_index(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(cast("Body", item).get("index"), int)


def _is_answer(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    named = cast("Body", item)
    return named.get("role") == "assistant" or str(named.get("type")).endswith("_call")


def _of_item(item: Body, *, is_new: bool) -> Iterator[Place]:
    if item.get("role") in ("tool", "function"):
        yield from _nested(item, "content", is_new=is_new)
    elif "output" in item:
        yield from _nested(item, "output", is_new=is_new)
    elif item.get("role") == "user":
        content = item.get("content")
        if isinstance(content, str):
            yield Place(REQUEST, content, item, "content", is_new)
        for part in cast("list[Any]", content) if isinstance(content, list) else []:
            if not isinstance(part, dict):
                continue
            named = cast("Body", part)
            if str(named.get("type")).endswith("tool_result"):
                yield from _nested(named, "content", is_new=is_new)
            elif isinstance(text := named.get("text"), str):
                yield Place(REQUEST, text, named, "text", is_new)


def _nested(holder: Body, member: str, *, is_new: bool) -> Iterator[Place]:
    """All texts of a tool's result, however deep."""
    pending: list[tuple[Any, Any]] = [(holder, member)] if member in holder else []
    while pending:
        inside, key = pending.pop()
        value = inside[key]
        if isinstance(value, str):
            yield Place(TOOL_RESULT, value, inside, key, is_new)
        elif isinstance(value, list):
            pending += [(value, number) for number in range(len(cast("list[Any]", value)))]
        elif isinstance(value, dict):
            pending += [(value, name) for name in cast("Body", value) if name not in _PICTURES]


def places_of_answer(body: Any) -> Iterator[Place]:
    """What the model says, and the arguments of its tool calls: in a whole answer, or in a chunk of a stream."""
    pending: list[tuple[Any, tuple[object, ...], str, bool]] = [(body, (), "", False)]
    while pending:
        holder, path, name, called = pending.pop()
        if isinstance(holder, dict):
            members = cast("Body", holder)
            path = (*path, *(members[index] for index in _INDEXES if isinstance(members.get(index), int)))
            entries: list[tuple[Any, Any, str]] = [(key, member, key) for key, member in members.items()]
        else:
            entries = [(number, item, name) for number, item in enumerate(cast("list[Any]", holder))]
        for key, member, named in entries:
            argued = called or named in _CALLED
            if isinstance(member, str):
                if member and (argued or named in _SPOKEN):
                    yield Place(ANSWER, member, holder, key, True, argued, (*path, key))
            elif isinstance(member, dict | list) and (called or named not in _NOT_SPOKEN):
                below = path if isinstance(key, str) or _has_index(member) else (*path, key)
                pending.append((member, below, named, argued))
