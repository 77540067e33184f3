"""`{"name": ..., "parameters": {...}}` and nothing else: how Llama 3.1 and later call tools."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats.base import Reply, ToolCall

PREFIX = "<|python_tag|>"
"""May stand before the calls."""
_BEFORE = re.compile(rf"\s*(?:{re.escape(PREFIX)}\s*)?")
_BEHIND = re.compile(r"\s*(?:;\s*|\Z)")
"""What parts two calls, or ends the last one."""
_OBJECT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finds where an object ends."""


class _Written(msgspec.Struct):
    """One call; its arguments stay exactly as they are written, under the name that the model chose."""

    name: str
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Llama3Json:
    """Calls are the whole answer, parted by semicolons; with any text around them all of it is content."""

    markers: Sequence[str] = (PREFIX,)
    openings: Sequence[str] = ("{", PREFIX)
    keeps_space = False

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:  # noqa: ARG002 - arguments are JSON
        """See `ToolFormat.parse`."""
        calls: list[ToolCall] = []
        before = _BEFORE.match(text)
        place = before.end() if before else 0
        while place < len(text):
            try:
                _, stop = _OBJECT.raw_decode(text, place)
                written = msgspec.json.decode(text[place:stop], type=_Written)
            except (ValueError, RecursionError):
                return Reply(text)
            arguments = written.parameters if written.arguments is msgspec.UNSET else written.arguments
            parted = _BEHIND.match(text, stop)
            if arguments is msgspec.UNSET or parted is None:
                return Reply(text)
            calls.append(ToolCall(written.name, bytes(arguments).decode()))
            place = parted.end()
        return Reply(None, calls) if calls else Reply(text or None)
