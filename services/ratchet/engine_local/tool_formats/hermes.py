"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: the format of Hermes and Qwen models."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ratchet.engine_local.tool_formats.base import Reply, ToolCall

_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class _Written(msgspec.Struct):
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
            call = _read(block[1])
            if call is None:
                break
            calls.append(call)
            end = block.end()
        if not calls or text[end:].strip():
            return Reply(text)
        return Reply(text[: start.start()] or None, calls)


def _read(block: str) -> ToolCall | None:
    """The call with its arguments exactly as written, or None when the block is not one."""
    try:
        written = msgspec.json.decode(block, type=_Written)
    except msgspec.DecodeError:
        return None
    return ToolCall(written.name, bytes(written.arguments).decode())
