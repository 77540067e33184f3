"""Policies at work in one process: they play tickets through the engine's own batch and text, and take exams."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from ratchet.contract.snapshot import Call, TrajectoryRow
from ratchet.demo.exams import Exam
from ratchet.engine_local.domain.answers import Completion
from ratchet.engine_local.domain.requests import Sampling
from ratchet.engine_local.torch_batch import Batch, Job, Update
from ratchet.engine_local.torch_policies import Served, load_weights, merge_adapter, serve
from ratchet_helpdesk.agent import MAX_TOKENS
from ratchet_helpdesk.heldout import TEMPERATURES, Answer
from ratchet_helpdesk.world import HELD_OUT, ChatMessage, Environment, Task, Verdict, draw_tasks, tool_definitions

OFFLINE = "offline"
"""Source of rows that no store has seen."""
SEATS = 128
"""Tickets at work at the same time."""
PREFIX_TOKENS = 20_000
"""Tokens whose keys and values are kept: system prompt and tools are the same in every ticket."""


@dataclass(frozen=True, slots=True)
class PlayedByPolicy:
    """A ticket that a policy worked on."""

    trajectory_id: str
    """Follows from the place of the ticket in the pile: a seed trains the same policy again."""
    task: Task
    verdict: Verdict
    messages: list[ChatMessage]
    calls: list[Call]

    @property
    def reward(self) -> float:
        """1 for a solved ticket, else 0."""
        return float(self.verdict.success)

    def logged(self, baseline: float | None = None) -> TrajectoryRow:
        """As a snapshot holds it, with the persistent baseline of its ticket."""
        return TrajectoryRow(
            trajectory_id=self.trajectory_id,
            task_key=self.task.task_id,
            reward=self.reward,
            raw_reward=self.reward,
            baseline=baseline,
            success=self.verdict.success,
            source=OFFLINE,
            messages=list(self.messages),
            tools=tool_definitions(),
            calls=self.calls,
        )


@dataclass(slots=True, eq=False)
class _Seat:
    trajectory_id: str
    task: Task
    environment: Environment
    messages: list[ChatMessage]
    calls: list[Call] = field(default_factory=list[Call])

    def played(self) -> PlayedByPolicy:
        """Once it is closed."""
        return PlayedByPolicy(self.trajectory_id, self.task, self.environment.verdict(), self.messages, self.calls)


class Sampler:
    """Tickets that one policy works on side by side."""

    def __init__(self, served: Served, temperature: float, seed: int) -> None:
        self._served = served
        self._sampling = Sampling(temperature=temperature, max_tokens=MAX_TOKENS)
        self._batch = Batch(served.network, served.text.end_ids, PREFIX_TOKENS, seed)
        self._tools = tool_definitions()
        self._ready: deque[_Seat] = deque()
        self._closed: list[_Seat] = []

    @torch.inference_mode()
    def play(self, tasks: Sequence[Task]) -> list[PlayedByPolicy]:
        """Play every ticket once, in the order in which they close."""
        pile, opened = enumerate(tasks), 0
        self._closed = []
        while len(self._closed) < len(tasks):
            fresh = [self._seat(*ticket) for ticket in islice(pile, SEATS - opened + len(self._closed))]
            opened += len(fresh)
            jobs = [self._job(seat) for seat in (*self._ready, *fresh)]
            self._ready.clear()
            for update in (*self._batch.join(jobs), *self._batch.step()):
                update.job.on_progress(update)
        return [seat.played() for seat in self._closed]

    @staticmethod
    def _seat(place: int, task: Task) -> _Seat:
        environment = Environment(task)
        return _Seat(f"{task.task_id}#{place}", task, environment, environment.opening())

    def _job(self, seat: _Seat) -> Job:
        prompt = self._served.text.chat_ids(seat.messages, self._tools)

        def ended(update: Update) -> None:
            if isinstance(update.end, Exception):
                raise update.end
            if update.end is not None:
                self._answered(seat, prompt, update.end)

        return Job(prompt, self._sampling, MAX_TOKENS, ended)

    def _answered(self, seat: _Seat, prompt: Sequence[int], done: Completion) -> None:
        seat.calls.append(
            Call(
                turn_id=f"{seat.trajectory_id} {len(seat.calls)}",
                prompt_token_ids=list(prompt),
                output_token_ids=list(done.token_ids),
                behavior_logprobs=list(done.logprobs),
                temperature=self._sampling.temperature,
                trainable=True,
            )
        )
        answer = self._served.text.reply(self._served.text.text(done.token_ids), self._tools)
        reply = answer.message(f"call_{len(seat.calls)}")
        seat.messages += [reply, *seat.environment.answer(reply)]
        (self._ready if seat.environment.open else self._closed).append(seat)


def take_exam(served: Served, count: int, seed: int) -> Exam:
    """The held-out tickets that the gate plays, once in each mode."""
    tasks = draw_tasks(HELD_OUT, count, seed)
    return Exam(
        [
            Answer.of(one.task, mode, one.verdict)
            for mode, temperature in TEMPERATURES.items()
            for one in Sampler(served, temperature, seed).play(tasks)
        ]
    )


def serve_folder(first: Path, adapter: Path | None) -> Served:
    """A policy as the engine serves it."""
    weights = load_weights(first)
    return serve(weights if adapter is None else merge_adapter(weights, adapter, None), None)
