"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: the format of Hermes and Qwen models."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ratchet.engine_local.tool_formats.base import Reply, ToolCall

_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class _Written(msgspec.Struct):
    """One call; its arguments stay exactly as they are written."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Hermes:
    """Text before the calls is content. When anything but calls follows it, all of the text is content."""

    markers: Sequence[str] = ("<tool_call>", "</tool_call>")

    def parse(self, text: str) -> Reply:
        """See `ToolFormat.parse`."""
        start = re.search(r"\s*<tool_call>", text)
        if start is None:
            return Reply(text or None)
        calls: list[ToolCall] = []
        end = start.start()
        while block := _CALL.match(text, end):
            try:
                written = msgspec.json.decode(block[1], type=_Written)
            except msgspec.DecodeError:
                break
            calls.append(ToolCall(written.name, bytes(written.arguments).decode()))
            end = block.end()
        if not calls or text[end:].strip():
            return Reply(text)
        return Reply(text[: start.start()] or None, calls)
