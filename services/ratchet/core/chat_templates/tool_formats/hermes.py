"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: the format of Hermes and Qwen models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats.base import Reply, ToolCall

_FIRST = re.compile(r"(?<!\s)\s*<tool_call>")
"""Where a call begins, looked for from the first of the white space before it: long white space is read once."""
_OPENING, _CLOSING = re.compile(r"\s*<tool_call>\s*(?=\{)"), re.compile(r"\s*</tool_call>")
_OBJECT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finds where an object ends: a text in it may hold the closing marker."""


class _Written(msgspec.Struct):
    """One call; its arguments stay exactly as they are written."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Hermes:
    """Text before the calls is content. When anything but calls follows it, all of the text is content."""

    markers: Sequence[str] = ("<tool_call>", "</tool_call>")
    openings: Sequence[str] = ("<tool_call>",)
    keeps_space = False

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:  # noqa: ARG002 - arguments are JSON
        """See `ToolFormat.parse`."""
        start = _FIRST.search(text)
        if start is None:
            return Reply(text or None)
        calls: list[ToolCall] = []
        end = start.start()
        while opening := _OPENING.match(text, end):
            try:
                _, stop = _OBJECT.raw_decode(text, opening.end())
                written = msgspec.json.decode(text[opening.end() : stop], type=_Written)
            except (ValueError, RecursionError):
                break
            closing = _CLOSING.match(text, stop)
            if closing is None:
                break
            calls.append(ToolCall(written.name, bytes(written.arguments).decode()))
            end = closing.end()
        if not calls or text[end:].strip():
            return Reply(text)
        return Reply(text[: start.start()] or None, calls)
