"""Tasks with one answer: a question, tools, and a judge of the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from tools.learning.worlds.base import Outcome
from tools.learning.worlds.public import Demonstration

Judge = Callable[[str, Sequence[tuple[str, str]]], Outcome]
"""Of an answer's text, and its calls as names and arguments in JSON."""


@dataclass(frozen=True, slots=True)
class SingleAnswer:
    """A `Task` with one answer."""

    task_id: str
    kind: str
    messages: Sequence[JsonObject]
    tools: list[JsonObject]
    judge: Judge

    def begin(self) -> AnswerEpisode:
        """See `Task`."""
        return AnswerEpisode(self)


@dataclass(slots=True)
class AnswerEpisode:
    """`Episode` of one answer."""

    task: SingleAnswer
    outcome: Outcome | None = None

    @property
    def open(self) -> bool:
        """See `Episode`."""
        return self.outcome is None

    def opening(self) -> list[JsonObject]:
        """See `Episode`."""
        return [dict(message) for message in self.task.messages]

    def answer(self, reply: JsonObject) -> list[JsonObject]:
        """See `Episode`."""
        if not self.open:
            raise ValueError(f"task {self.task.task_id} is closed")
        functions = [call["function"] for call in reply.get("tool_calls") or []]
        calls = [(str(function["name"]), str(function["arguments"])) for function in functions]
        self.outcome = self.task.judge(str(reply.get("content") or ""), calls)
        return []

    def verdict(self) -> Outcome:
        """See `Episode`."""
        if self.outcome is None:
            raise ValueError(f"task {self.task.task_id} is open")
        return self.outcome


def shown_call(task: SingleAnswer, name: str, arguments: JsonObject) -> Demonstration:
    """A task answered with one call."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    call = {"id": "call_1", "type": "function", "function": function}
    return Demonstration(task, [*task.messages, {"role": "assistant", "content": None, "tool_calls": [call]}])


def shown_text(task: SingleAnswer, text: str) -> Demonstration:
    """A task answered in words."""
    return Demonstration(task, [*task.messages, {"role": "assistant", "content": text}])
