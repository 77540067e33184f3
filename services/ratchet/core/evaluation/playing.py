"""Has a policy play tasks, greedy or sampled, and grades what it did. Most tasks take one message of it.

An answer that is wrong is the policy's; a call that brought no answer (an engine that is away, overloaded or broken) is
not, and is counted apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import uuid_utils

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import BadRequest, Unavailable
from ratchet.core.evaluation.task_files import GradedTask

GREEDY, SAMPLED, BEST = "greedy", "sampled", "best"
"""Modes: the likeliest token everywhere (temperature 0), tokens drawn as agents draw them, or of those the try that a
reward model likes best."""
PAUSES_S = (1.0, 4.0)
"""Before a task is asked again after a fault of the engine."""
FAULTS_IN_A_ROW = 8
"""After so many the engine is taken to be away, and what remains is not asked."""
NEXT_MESSAGE = 1_000_003
"""Between the seeds of a conversation's messages."""
MOST_MESSAGES = 64
"""Of a policy in one conversation: a grader may never end it."""


Scorer = Callable[[Sequence[JsonObject], Sequence[JsonObject]], Awaitable[float]]
"""A reward model's score of messages, with the tools that were offered. Raises `BadRequest` for what it cannot read."""
Draw = tuple[str, int, float]
"""Mode, number and temperature of a try."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's next message, or the words in which its server refused to write one."""

    message: JsonObject | None = None
    refused: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Player(Protocol):
    """Asks one policy."""

    async def answer(self, task: Task, temperature: float, seed: int, trajectory_id: str) -> Answer:
        """Its next message in a task, whose messages are those of the trajectory so far.

        Raises `Unavailable` for the engine's fault, other errors where no task can be asked.
        """
        ...


class Try(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try of one task, graded; or the fault that came in its place."""

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
    calls: int = 0
    """Tool calls, as far as the task's grader counts them,"""
    valid_calls: int = 0
    """and those of them that name a tool with its arguments."""
    message: JsonObject | None = None
    """The policy's last one."""
    reward: float | None = None
    """What a reward model says of the conversation, where one was asked."""

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
    scorer: Scorer | None = None
    """Scores what is sampled; None: nothing is chosen from it."""

    @property
    def draws(self) -> list[Draw]:
        """The tries of a task."""
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
    jobs = iter([(task, draw) for task in tasks for draw in plan.draws])
    made: dict[tuple[str, str, int], Try] = {}
    faults = 0

    async def work() -> None:
        nonlocal faults
        for graded, draw in jobs:
            begun, (mode, number, _) = clock(), draw
            try:
                done = await _tried(player, graded, draw, pauses_s, plan.scorer if mode == SAMPLED else None)
            except Unavailable as error:
                faults += 1
                if faults >= FAULTS_IN_A_ROW:
                    raise
                done = Try(task=graded.task.id, mode=mode, number=number, fault=str(error))
            else:
                faults = 0
                done = msgspec.structs.replace(done, latency_ms=(clock() - begun) * 1000)
            made[graded.task.id, mode, number] = done
            on_try(done)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.at_once):
                group.create_task(work())
    except ExceptionGroup as errors:  # the first one ended the others
        raise errors.exceptions[0] from None
    return [made[graded.task.id, mode, number] for graded in tasks for mode, number, _ in plan.draws]


async def _tried(
    player: Player, graded: GradedTask, draw: Draw, pauses_s: Sequence[float], scorer: Scorer | None
) -> Try:
    """One try, a trajectory of its own. Raises what the player raises.

    A server that refuses the first request refuses the task; one that refuses a later one ends the conversation, such
    as one that has grown longer than the policy can read.
    """
    (mode, number, temperature), task, conversation = draw, graded.task, graded.begin()
    seed, trajectory_id, last = task.seed + number, str(uuid_utils.uuid7()), None
    prompt_tokens = completion_tokens = 0
    for message in range(MOST_MESSAGES):
        # Each message draws anew: with one seed for all of them an unlikely first token comes back every time.
        answer = await _answered(player, task, temperature, seed + NEXT_MESSAGE * message, trajectory_id, pauses_s)
        if answer.message is None:
            if last is None:
                return Try(task=task.id, mode=mode, number=number, refused=True, why=f"refused: {answer.refused}")
            break
        last = answer.message
        prompt_tokens += answer.prompt_tokens
        completion_tokens += answer.completion_tokens
        written: JsonObject = {"role": "assistant", "content": last.get("content")}
        if last.get("tool_calls"):
            written["tool_calls"] = last["tool_calls"]
        task = msgspec.structs.replace(task, messages=[*task.messages, written])
        if not (replies := conversation.reply(last)):
            break
        task = msgspec.structs.replace(task, messages=[*task.messages, *replies])
    grade = conversation.grade()
    return Try(
        task=task.id,
        mode=mode,
        number=number,
        score=grade.score,
        why=grade.why,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        calls=grade.calls,
        valid_calls=grade.valid_calls,
        message=last,
        reward=await _reward(scorer, task) if scorer is not None else None,
    )


async def _reward(scorer: Scorer, played: Task) -> float | None:
    """The score of a whole conversation; None for one that the reward model cannot read."""
    try:
        return await scorer(played.messages, played.tools)
    except BadRequest:
        return None


def best_by_reward(tries: Sequence[Try]) -> list[Try]:
    """Of each task the sampled try that the reward model likes best (of equal ones the first), as mode `BEST`.

    A task without a score has no best try: a fault, which counts nowhere.
    """
    by_task: dict[str, list[Try]] = {}
    for tried in tries:
        if tried.mode == SAMPLED:
            by_task.setdefault(tried.task, []).append(tried)
    best: list[Try] = []
    for task, own in by_task.items():
        scored = [tried for tried in own if tried.reward is not None]
        if scored:
            chosen = max(scored, key=lambda tried: (tried.reward or 0.0, -tried.number))
        else:
            fault = next((tried.fault for tried in own if tried.fault), "the reward model can read no try of it")
            chosen = next((tried for tried in own if tried.refused), Try(task=task, mode=BEST, number=0, fault=fault))
        best.append(msgspec.structs.replace(chosen, mode=BEST))
    return best


async def _answered(
    player: Player, task: Task, temperature: float, seed: int, trajectory_id: str, pauses_s: Sequence[float]
) -> Answer:
    """The answer; a fault of the engine is tried again after each pause."""
    for pause_s in pauses_s:
        try:
            return await player.answer(task, temperature, seed, trajectory_id)
        except Unavailable:
            await asyncio.sleep(pause_s)
    return await player.answer(task, temperature, seed, trajectory_id)
