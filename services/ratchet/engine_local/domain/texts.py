"""Chat messages made fit for a template: text only, and no control token smuggled in as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from ratchet.kernel.asgi import HttpError
from ratchet.messages.base import JsonObject

_ROLES = {"system", "developer", "user", "assistant", "tool"}


class ControlTokens:
    """The texts that a tokenizer reads as control tokens; only templates and the policy itself may write them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        found = sorted({token for token in tokens if token}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def refuse_in(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> None:
        """Raise `HttpError` 400 when a message that the policy did not write, or a tool, contains one."""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                self.refuse(str(message.get("content") or ""), f"messages[{index}].content")
                self.refuse(str(message.get("name") or ""), f"messages[{index}].name")
        if tools:
            self.refuse(msgspec.json.encode(tools).decode(), "tools")

    def refuse(self, text: str, where: str) -> None:
        """Raise `HttpError` 400 when `text` contains a control token."""
        found = self._pattern.search(text) if self._pattern else None
        if found:
            message = f"{where} contains the control token {found[0]!r}, which only the chat template may write"
            raise HttpError(400, message, code="control_token", param=where)


def template_messages(messages: Sequence[JsonObject], *, arguments_as_objects: bool) -> list[JsonObject]:
    """Messages as a chat template expects them: content as text, arguments as the template renders them.

    Raises `HttpError` 400 for roles and content that this engine cannot render.
    """
    return [_template_message(message, index, arguments_as_objects) for index, message in enumerate(messages)]


def _template_message(message: JsonObject, index: int, arguments_as_objects: bool) -> JsonObject:
    role = message.get("role")
    if role not in _ROLES:
        raise HttpError(400, f"messages[{index}].role {role!r} is not one of {', '.join(sorted(_ROLES))}")
    shaped = {name: value for name, value in message.items() if value is not None}
    shaped["content"] = _text(message.get("content"), index)
    calls: Any = message.get("tool_calls")
    if calls:
        shaped["tool_calls"] = [_call(call, index, arguments_as_objects) for call in _list(calls, index)]
    return shaped


def _text(content: object, index: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    where = f"messages[{index}].content"
    if not isinstance(content, list):
        raise HttpError(400, f"{where} must be a text or a list of text parts", param=where)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        if not isinstance(part, dict) or not isinstance(cast("JsonObject", part).get("text"), str):
            raise HttpError(400, f"{where} holds a part that is not text", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _list(calls: object, index: int) -> list[object]:
    if not isinstance(calls, list):
        raise HttpError(400, f"messages[{index}].tool_calls must be a list")
    return cast("list[object]", calls)


def _call(call: object, index: int, arguments_as_objects: bool) -> JsonObject:
    function: Any = cast("JsonObject", call).get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(cast("JsonObject", function).get("name"), str):
        raise HttpError(400, f"messages[{index}] has a tool call without a function name")
    shaped = dict(cast("JsonObject", call))
    arguments: Any = function.get("arguments")
    if arguments_as_objects and isinstance(arguments, str):
        arguments = _parsed(arguments)
    shaped["function"] = {**function, "arguments": arguments}
    return shaped


def _parsed(arguments: str) -> object:
    """The object that `arguments` spells; the text itself when it spells none."""
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
