"""Chat messages made fit for a template: text only, and control tokens in what others say kept apart from real ones."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.errors import BadRequest

_ROLES = {"system", "developer", "user", "assistant", "tool"}
MARKS = range(0xF0000, 0xFFFFE)
"""Characters for private use; one of them stands for each control token that was written as text."""


class ControlTokens:
    """The texts that a tokenizer reads as control tokens; only templates and the policy itself may write them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.texts = sorted({token for token in tokens if token}, key=len, reverse=True)
        self.longest = max(map(len, self.texts), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None

    def within(self, text: str) -> bool:
        """Whether `text` contains one."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def without(self, text: str) -> str:
        """`text` with all of them taken out, also those that come about by taking one out."""
        while self._pattern is not None and self._pattern.search(text):
            text = self._pattern.sub("", text)
        return text

    def plain_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The parts of `text` between them, as (begin, end)."""
        begin = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            yield begin, match.start()
            begin = match.end()
        yield begin, len(text)


class Marks:
    """Stand-ins for the control tokens in some texts, so that a template can be filled without their taking effect."""

    def __init__(self, control: ControlTokens, value: object) -> None:
        """`value`: everything that will be rendered, for marks that occur nowhere in it. Raises `BadRequest`."""
        texts = "\0".join(_texts(value))
        free = (chr(code) for code in MARKS if chr(code) not in texts)
        self._marks = dict(zip((token for token in control.texts if token in texts), free, strict=False))
        if any(token in texts and token not in self._marks for token in control.texts):
            raise BadRequest("the messages use every character for private use", code="control_token")
        self._meant = {mark: token for token, mark in self._marks.items()}
        self._pattern = re.compile(f"([{''.join(self._meant)}])") if self._meant else None

    def hide(self, value: Any, but: Container[str] = ()) -> Any:
        """`value` with a mark for every control token in its texts, except for those in `but`. `Any`: JSON."""
        if isinstance(value, str):
            for token, mark in self._marks.items():
                value = value if token in but else value.replace(token, mark)
            return value
        if isinstance(value, dict):
            members = cast("JsonObject", value)
            return {self.hide(name, but): self.hide(one, but) for name, one in members.items()}
        if isinstance(value, list):
            return [self.hide(one, but) for one in cast("list[object]", value)]
        return value

    def parts(self, rendered: str) -> list[tuple[str, bool]]:
        """What a template made of hidden texts, in parts: each text, and whether it is a hidden control token's."""
        if self._pattern is None:
            return [(rendered, False)]
        return [(self._meant.get(part, part), part in self._meant) for part in self._pattern.split(rendered) if part]


def _texts(value: object) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in cast("JsonObject", value).items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _texts(one)


def template_messages(messages: Sequence[JsonObject], *, arguments_as_objects: bool) -> list[JsonObject]:
    """Messages as a chat template expects them: content as text, arguments as the template renders them.

    Raises `BadRequest` for roles and content that this engine cannot render.
    """
    shaped_messages: list[JsonObject] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRequest(f"messages[{index}].role {role!r} is not one of {', '.join(sorted(_ROLES))}")
        shaped = {name: value for name, value in message.items() if value is not None}
        shaped["content"] = _text(message.get("content"), index)
        calls: object = message.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                raise BadRequest(f"messages[{index}].tool_calls must be a list")
            shaped["tool_calls"] = [_call(call, index, arguments_as_objects) for call in cast("list[object]", calls)]
        shaped_messages.append(shaped)
    return shaped_messages


def _text(content: object, index: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    where = f"messages[{index}].content"
    if not isinstance(content, list):
        raise BadRequest(f"{where} must be a text or a list of text parts", param=where)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        if not isinstance(part, dict) or not isinstance(cast("JsonObject", part).get("text"), str):
            raise BadRequest(f"{where} holds a part that is not text", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _call(call: object, index: int, arguments_as_objects: bool) -> JsonObject:
    function: Any = cast("JsonObject", call).get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(cast("JsonObject", function).get("name"), str):
        raise BadRequest(f"messages[{index}] has a tool call without a function name")
    shaped = dict(cast("JsonObject", call))
    arguments: Any = function.get("arguments")
    if arguments_as_objects and isinstance(arguments, str):
        with suppress(msgspec.DecodeError, RecursionError):  # what spells no object stays as it is written
            arguments = msgspec.json.decode(arguments)
    shaped["function"] = {**function, "arguments": arguments}
    return shaped
