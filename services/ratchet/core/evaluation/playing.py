"""Has a policy answer tasks, greedy or sampled, and grades the answers.

An answer that is wrong is the policy's; a call that brought no answer (an engine that is away, overloaded or broken) is
not, and is counted apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import Unavailable
from ratchet.core.evaluation.task_files import GradedTask

GREEDY, SAMPLED = "greedy", "sampled"
"""Modes: the likeliest token everywhere (temperature 0), or tokens drawn as agents draw them."""
PAUSES_S = (1.0, 4.0)
"""Before a task is asked again after a fault of the engine."""
FAULTS_IN_A_ROW = 8
"""After so many the engine is taken to be away, and what remains is not asked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's next message, or the words in which its server refused to write one."""

    message: JsonObject | None = None
    refused: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Player(Protocol):
    """Asks one policy."""

    async def answer(self, task: Task, temperature: float, seed: int) -> Answer:
        """Its next message. Raises `Unavailable` for the engine's fault, other errors where no task can be asked."""
        ...


class Try(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer to one task, graded; or the fault that came in its place."""

    task: str
    mode: str
    number: int
    """Of the tries of the task in this mode, from 0."""
    score: float = 0.0
    why: str = ""
    fault: str | None = None
    """Why there is no answer: the engine's fault, which says nothing of the policy."""
    refused: bool = False
    """The server refuses the task's request for this policy, such as one that is longer than its context."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_ms: float = 0.0
    message: JsonObject | None = None

    @property
    def success(self) -> bool:
        return self.score >= 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How often a policy answers each task: once greedy, `samples` times sampled."""

    greedy: bool = True
    samples: int = 0
    temperature: float = 1.0
    at_once: int = 4
    """Tasks that are asked at the same time."""

    @property
    def draws(self) -> list[tuple[str, int, float]]:
        """Mode, number and temperature of each try of a task."""
        sampled = [(SAMPLED, number, self.temperature) for number in range(self.samples)]
        return [*([(GREEDY, 0, 0.0)] if self.greedy else []), *sampled]


async def play(
    player: Player,
    tasks: Sequence[GradedTask],
    plan: Plan,
    on_try: Callable[[Try], None] = lambda _: None,
    *,
    clock: Callable[[], float],
    pauses_s: Sequence[float] = PAUSES_S,
) -> list[Try]:
    """Every try of every task, in the order of the tasks.

    Raises `Unavailable` when the engine seems to be away, and what the player raises for a policy that is not there.
    """
    jobs = iter([(one, draw) for one in tasks for draw in plan.draws])
    made: dict[tuple[str, str, int], Try] = {}
    faults = 0

    async def work() -> None:
        nonlocal faults
        for one, (mode, number, temperature) in jobs:
            begun = clock()
            try:
                answer = await _answered(player, one.task, temperature, one.task.seed + number, pauses_s)
            except Unavailable as error:
                faults += 1
                if faults >= FAULTS_IN_A_ROW:
                    raise
                done = Try(task=one.task.id, mode=mode, number=number, fault=str(error))
            else:
                faults = 0
                done = _graded(one, mode, number, answer, (clock() - begun) * 1000)
            made[one.task.id, mode, number] = done
            on_try(done)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.at_once):
                group.create_task(work())
    except ExceptionGroup as errors:  # the first one ended the others
        raise errors.exceptions[0] from None
    return [made[one.task.id, mode, number] for one in tasks for mode, number, _ in plan.draws]


async def _answered(player: Player, task: Task, temperature: float, seed: int, pauses_s: Sequence[float]) -> Answer:
    """The answer; a fault of the engine is tried again after each pause."""
    for pause_s in pauses_s:
        try:
            return await player.answer(task, temperature, seed)
        except Unavailable:
            await asyncio.sleep(pause_s)
    return await player.answer(task, temperature, seed)


def _graded(one: GradedTask, mode: str, number: int, answer: Answer, latency_ms: float) -> Try:
    if answer.message is None:
        why = f"refused: {answer.refused}"
        return Try(task=one.task.id, mode=mode, number=number, refused=True, why=why, latency_ms=latency_ms)
    grade = one.grade(answer.message)
    return Try(
        task=one.task.id,
        mode=mode,
        number=number,
        score=grade.score,
        why=grade.why,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        latency_ms=latency_ms,
        message=answer.message,
    )
