"""Policies at work in one process: they play tasks through the engine's own batch and text, and take exams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import Call, TrajectoryRow
from ratchet.core.datasets.domain.sequences import packed
from ratchet.local.demo.exams import Exam
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_policies import Served, load_weights, serve, with_adapter
from ratchet.local.engine_local.transformers_text import ChatText
from ratchet_helpdesk.heldout import TEMPERATURES, Answer
from tools.learning.worlds.base import OFFLINE, Engine, Episode, Outcome, Task, Verdict


@dataclass(frozen=True, slots=True)
class PlayedByPolicy:
    """A task that a policy worked on."""

    trajectory_id: str
    """Follows from the place of the task in the pile: a seed trains the same policy again."""
    task: Task
    verdict: Verdict
    messages: list[JsonObject]
    calls: list[Call]

    @property
    def reward(self) -> float:
        """Where the task grades no answers 1 for a solved one, else 0."""
        graded = self.verdict.graded if isinstance(self.verdict, Outcome) else None
        return float(self.verdict.success) if graded is None else graded

    def logged(self, baseline: float | None = None) -> TrajectoryRow:
        """As a snapshot holds it, with the persistent baseline of its task."""
        row = TrajectoryRow(
            trajectory_id=self.trajectory_id,
            task_key=self.task.task_id,
            reward=self.reward,
            raw_reward=self.reward,
            baseline=baseline,
            success=self.verdict.success,
            source=OFFLINE,
            messages=list(self.messages),
            tools=self.task.tools,
            calls=self.calls,
        )
        return packed(row)


@dataclass(slots=True, eq=False)
class _Seat:
    trajectory_id: str
    task: Task
    episode: Episode
    messages: list[JsonObject]
    calls: list[Call] = field(default_factory=list[Call])

    def played(self) -> PlayedByPolicy:
        """Once it is closed."""
        return PlayedByPolicy(self.trajectory_id, self.task, self.episode.verdict(), self.messages, self.calls)


class Sampler:
    """Tasks that one policy works on side by side."""

    def __init__(self, served: Served, engine: Engine, seed: int) -> None:
        self._served = served
        self._engine = engine
        self._batch = Batch(served.network, served.text.end_ids, engine.prefix_tokens, seed)

    @torch.inference_mode()
    def play(self, tasks: Sequence[Task], temperature: float) -> list[PlayedByPolicy]:
        """Play every task once, in the order in which they close."""
        sampling = Sampling(temperature=temperature, max_tokens=self._engine.max_tokens)
        table = _Table(self._served.text, sampling)
        pile, opened = enumerate(tasks), 0
        while len(table.closed) < len(tasks):
            fresh = [_seat(*task) for task in islice(pile, self._engine.seats - opened + len(table.closed))]
            opened += len(fresh)
            table.ready += fresh
            if len(table.ready) >= self._engine.together or not len(self._batch):
                jobs = [table.job(seat) for seat in table.ready]
                table.ready.clear()
            else:
                jobs = []
            joined = [update for alike in self._passes(jobs) for update in self._batch.join(alike)]
            for update in (*joined, *self._batch.step()):
                update.job.on_progress(update)
        return [seat.played() for seat in table.closed]

    def _passes(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The prompts that are computed together: the longest has at most twice the new tokens of the shortest."""
        if self._engine.together == 1:
            return [list(jobs)]
        alike: dict[tuple[int, ...], list[Job]] = {}
        for job in jobs:
            alike.setdefault((*job.prompt,), []).append(job)
        new = self._batch.new_tokens([tries[0] for tries in alike.values()])
        passes: list[list[Job]] = []
        shortest = 0
        for tokens, tries in sorted(zip(new, alike.values(), strict=True), key=lambda pair: pair[0]):
            if passes and tokens <= 2 * shortest:
                passes[-1] += tries
            else:
                passes.append(list(tries))
                shortest = tokens
        return passes


def _seat(place: int, task: Task) -> _Seat:
    episode = task.begin()
    return _Seat(f"{task.task_id}#{place}", task, episode, episode.opening())


@dataclass(slots=True)
class _Table:
    """Who waits for the policy, and who is done."""

    text: ChatText
    sampling: Sampling
    ready: list[_Seat] = field(default_factory=list[_Seat])
    closed: list[_Seat] = field(default_factory=list[_Seat])

    def job(self, seat: _Seat) -> Job:
        """The next answer of a task."""
        prompt = self.text.chat_ids(seat.messages, seat.task.tools)

        def ended(update: Update) -> None:
            if isinstance(update.end, Exception):
                raise update.end
            if update.end is not None:
                self._answered(seat, prompt, update.end)

        return Job(prompt, self.sampling, self.sampling.max_tokens or 1, ended)

    def _answered(self, seat: _Seat, prompt: Sequence[int], done: Completion) -> None:
        seat.calls.append(
            Call(
                turn_id=f"{seat.trajectory_id} {len(seat.calls)}",
                prompt_token_ids=list(prompt),
                output_token_ids=list(done.token_ids),
                behavior_logprobs=list(done.logprobs),
                temperature=self.sampling.temperature,
                trainable=True,
            )
        )
        answer = self.text.reply(self.text.text(done.token_ids), seat.task.tools)
        reply = answer.message(f"call_{len(seat.calls)}")
        seat.messages += [reply, *seat.episode.answer(reply)]
        (self.ready if seat.episode.open else self.closed).append(seat)


def take_exam(served: Served, engine: Engine, tasks: Sequence[Task], seed: int) -> Exam:
    """The held-out tasks, once in each mode; the second mode finds the prompts of the first computed."""
    sampler = Sampler(served, engine, seed)
    return Exam(
        [
            _answer(played, mode)
            for mode, temperature in TEMPERATURES.items()
            for played in sampler.play(tasks, temperature)
        ]
    )


def _answer(played: PlayedByPolicy, mode: str) -> Answer:
    verdict = played.verdict
    return Answer(
        task=played.task.task_id,
        kind=played.task.kind,
        mode=mode,
        success=verdict.success,
        calls=verdict.tool_calls,
        valid_calls=verdict.valid_tool_calls,
    )


def serve_folder(first: Path, adapter: Path | None, dtype: str | None = None) -> Served:
    """A policy as the engine serves it."""
    weights = load_weights(first, dtype)
    return serve(weights if adapter is None else with_adapter(weights, adapter, None), None)
