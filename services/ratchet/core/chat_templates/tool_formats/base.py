"""How a family of models writes tool calls into its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.bus.message import JsonObject


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy wrote it; `arguments` is verbatim, valid JSON or not, where the format writes JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A policy's text taken apart. Malformed calls stay visible: in `arguments` or in `content`."""

    content: str | None
    calls: Sequence[ToolCall] = ()

    def message(self, call_id: str) -> JsonObject:
        """The assistant message in OpenAI's form; its calls are named `<call_id>_0`, `<call_id>_1` ..."""
        message: JsonObject = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {"id": f"{call_id}_{n}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for n, c in enumerate(self.calls)
            ]
        return message


class ToolFormat(Protocol):
    """One way of writing tool calls."""

    markers: Sequence[str]
    """Texts that start or end a call; like control tokens they may not stand in what users and tools say."""

    openings: Sequence[str]
    """Texts with which calls may begin: from the first of them on nothing is content, if the answer calls."""
    keeps_space: bool
    """White space before a call is content."""

    def parse(self, text: str, tools: Sequence[JsonObject]) -> Reply:
        """Take the policy's text (without its end token) apart, so that rendering the reply gives the text again.

        `tools`: those that were offered, in OpenAI's form: a format whose arguments are plain text reads their types.
        """
        ...
