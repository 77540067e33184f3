"""Held-out tickets as a task file, and the grader that plays customer and tools: `ratchet eval` and the gate ask a
policy with them.

A line of the file holds its whole ticket under `expect.further.helpdesk`; `pyproject.toml` names `build` as the grader
of that name. Greedy takes the most likely token everywhere (temperature 0), so a policy that only became surer of what
it did before gains when sampled and gains nothing greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders.base import Environment, Grade
from ratchet.core.evaluation.playing import GREEDY, SAMPLED
from ratchet_helpdesk.world import HELD_OUT, ChatMessage
from ratchet_helpdesk.worlds import WORLDS, World

TEMPERATURES = {SAMPLED: 1.0, GREEDY: 0.0}
"""By mode. Agents sample at temperature 1, because learning needs tries that differ."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One ticket played once in one mode."""

    task: str
    kind: str
    mode: str
    success: bool
    calls: int
    """Tool calls,"""
    valid_calls: int
    """and those of them that name a tool with its arguments."""


def held_out_file(world: World, count: int, seed: int) -> bytes:
    """The lines of a task file: so many held-out tickets of a world, and their seed."""
    return task_file(world, HELD_OUT, count, seed)


def task_file(world: World, split: str, count: int, seed: int) -> bytes:
    """The same of either split."""
    lines = [_line(world, task, number) for number, task in enumerate(world.draw_tasks(split, count, seed), 1)]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _line(world: World, task: Any, seed: int) -> dict[str, Any]:  # `Any`: a task of this world
    return {
        "id": task.task_id,
        "messages": world.environment(task).opening(),
        "tools": world.tools,
        "max_tokens": world.max_tokens,
        "seed": seed * 1_000,  # with one for all, every ticket would be played by the same draws
        "expect": {"further": {"helpdesk": {"world": world.name, "task": asdict(task)}}},
    }


class _Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a task expects of a policy: that it solves this ticket of this world."""

    world: str
    task: dict[str, Any]


def build(expectation: Any) -> Environment:
    """A grader for task files. Raises `Rejected` for an expectation that is not a ticket of a known world."""
    try:
        ticket = msgspec.convert(expectation, _Ticket)
        if ticket.world not in WORLDS:
            raise Rejected(f"/world: {ticket.world!r} is not one of {', '.join(WORLDS)}")
        world = WORLDS[ticket.world]
        task = msgspec.convert(ticket.task, world.task)
    except msgspec.ValidationError as error:
        raise Rejected(str(error)) from None
    return Environment(lambda: _Conversation(world.environment(task)))


class _Conversation:
    """`Conversation`: the environment of one ticket."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reply(self, message: ChatMessage) -> Sequence[ChatMessage]:
        answers = self._environment.answer(message)
        return answers if self._environment.open else ()

    def grade(self) -> Grade:
        verdict = self._environment.verdict()
        return Grade(
            score=float(verdict.success),
            why=verdict.fault or "right",
            calls=verdict.tool_calls,
            valid_calls=verdict.valid_tool_calls,
        )


__all__ = ["GREEDY", "SAMPLED", "TEMPERATURES", "Answer", "build", "held_out_file", "task_file"]
