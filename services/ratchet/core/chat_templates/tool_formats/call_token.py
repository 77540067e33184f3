"""`text<|call|>name {json}<|call|>name {json}`: one control token starts each call."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats.base import Reply, ToolCall

MARKER = "<|call|>"


class CallToken:
    """Splits at every `<|call|>`; the first space ends the name."""

    markers: Sequence[str] = (MARKER,)
    openings: Sequence[str] = (MARKER,)
    keeps_space = True

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:  # noqa: ARG002 - arguments are JSON
        """See `ToolFormat.parse`."""
        content, *calls = text.split(MARKER)
        parted = [call.partition(" ") for call in calls]
        return Reply(content or None, [ToolCall(name, arguments) for name, _, arguments in parted])
