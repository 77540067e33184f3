"""Where the texts stand that filters see: in requests, whole answers and chunks of streams, of every API alike.

All APIs name what holds text by the same few words, so one walk serves them. It goes by a stack: what is nested deep is
read as all else, and values that hold no text (numbers, null, pictures) are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ratchet.dialects.requests import Body

REQUEST, ANSWER, TOOL_RESULT = "request", "answer", "tool_result"
"""What a text is: of a user, of the model, of a tool. Labels name it so."""
CONVERSATIONS = ("messages", "input", "prompt", "suffix", "metadata")
"""Members of requests that hold what was said; a bundle's instructions may hold what stands in `metadata`."""
_NO_TOOL = frozenset({"system", "developer", "assistant"})
_PICTURES = frozenset({"image_url", "file_data", "encrypted_content"})
_BINARY = _PICTURES | {"data"}
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
    parts: Sequence[Any] = ()
    """The parts of a content whose texts are this one together."""

    def without(self, replaced: Collection[tuple[int, Any]]) -> Place:
        """The parts together, but for those of which another text takes the place: by holder and key."""
        parts = [part for part in self.parts if (id(part), "text") not in replaced]
        if len(parts) == len(self.parts):
            return self
        return replace(self, text=" ".join(part["text"] for part in parts), parts=parts)

    def write(self, text: str) -> None:
        """Put another text in its place: of several parts in the first one, and none in the others."""
        if not self.parts:
            self.holder[self.key] = text
        for part in self.parts:
            part["text"], text = text, ""

    def drop_empty(self) -> None:
        """Take the parts without a text out of their content: providers refuse them."""
        if self.parts:
            empty = {id(part) for part in self.parts if not part["text"]}
            self.holder[self.key] = [part for part in self.holder[self.key] if id(part) not in empty]


def places_of_request(members: Mapping[str, Any]) -> Iterator[Place]:
    """What users and tools say. What the model said is the model's; system prompts are the operator's."""
    for name, spoken in members.items():
        if isinstance(spoken, str):
            yield Place(REQUEST, spoken, members, name)
        elif isinstance(spoken, dict):
            yield from _nested(REQUEST, cast("Body", members), name, is_new=True)
        if not isinstance(spoken, list):
            continue
        items = cast("list[Any]", spoken)
        answers = (number for number, item in enumerate(items[:-1]) if _is_answer(item))  # the last one waits for more
        answered = max(answers, default=-1)
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
    role = item.get("role")
    if "output" in item:
        yield from _nested(TOOL_RESULT, item, "output", is_new=is_new)
    if role == "user":
        content = item.get("content")
        if isinstance(content, str):
            yield Place(REQUEST, content, item, "content", is_new)
        elif isinstance(content, list):
            parts = cast("list[Any]", content)
            for part in parts:
                yield from _of_part(part, is_new=is_new)
            yield from _together(REQUEST, item, "content", parts, is_new=is_new)
    elif isinstance(role, str) and role not in _NO_TOOL:  # each template has its own for tools
        yield from _nested(TOOL_RESULT, item, "content", is_new=is_new)


def _of_part(part: Any, *, is_new: bool) -> Iterator[Place]:
    """A part of what a user says: a text, a document, or what a tool or a search gave back."""
    if not isinstance(part, dict):
        return
    named = cast("Body", part)
    if str(named.get("type")).endswith(("tool_result", "search_result")):
        yield from _nested(TOOL_RESULT, named, "content", is_new=is_new)
    elif isinstance(text := named.get("text"), str):
        yield Place(REQUEST, text, named, "text", is_new)
    elif isinstance(named.get("source"), dict):
        yield from _nested(REQUEST, named, "source", is_new=is_new)


def _together(kind: str, holder: Any, key: Any, parts: list[Any], *, is_new: bool) -> Iterator[Place]:
    """The texts of a content's parts as one: a sentence may begin in one of them and end in the next."""
    named = [cast("Body", part) for part in parts if isinstance(part, dict)]
    spoken = [part for part in named if isinstance(part.get("text"), str)]
    if len(spoken) > 1:
        yield Place(kind, " ".join(part["text"] for part in spoken), holder, key, is_new, parts=spoken)


def _nested(kind: str, holder: Body, member: str, *, is_new: bool) -> Iterator[Place]:
    """All texts within a member, however deep."""
    pending: list[tuple[Any, Any]] = [(holder, member)] if member in holder else []
    while pending:
        inside, key = pending.pop()
        value = inside[key]
        if isinstance(value, str):
            yield Place(kind, value, inside, key, is_new)
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            pending += [(items, number) for number in range(len(items))]
            yield from _together(kind, inside, key, items, is_new=is_new)
        elif isinstance(value, dict):
            members = cast("Body", value)
            pictures = _BINARY if members.get("type") == "base64" else _PICTURES
            pending += [(members, name) for name in members if name not in pictures]


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
