"""`{"name": ..., "parameters": {...}}` and nothing else: how Llama 3.1 and later call tools."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.chat_templates.tool_formats.base import Reply, ToolCall

PREFIX = "<|python_tag|>"
"""May stand before the calls."""
_SEPARATOR = ";"
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
    opening = "{"
    keeps_space = False

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:  # noqa: ARG002 - arguments are JSON
        """See `ToolFormat.parse`."""
        calls: list[ToolCall] = []
        rest = text.strip().removeprefix(PREFIX).lstrip()
        while rest:
            try:
                _, stop = _OBJECT.raw_decode(rest)
                written = msgspec.json.decode(rest[:stop], type=_Written)
            except (ValueError, RecursionError):
                return Reply(text or None)
            arguments = written.parameters if written.arguments is msgspec.UNSET else written.arguments
            rest = rest[stop:].lstrip()
            if arguments is msgspec.UNSET or (rest and not rest.startswith(_SEPARATOR)):
                return Reply(text)
            calls.append(ToolCall(written.name, bytes(arguments).decode()))
            rest = rest.removeprefix(_SEPARATOR).lstrip()
        return Reply(None, calls) if calls else Reply(text or None)
