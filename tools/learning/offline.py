"""The loop's learning alone, in one process: the same world, base model, trainer and engine, without bus and services.

What `ratchet demo` shows once, with everything in between, this can repeat over seeds: `tools.learning.report` does.
"""

from __future__ import annotations

import math
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from ratchet.contract.snapshot import Call, TrajectoryRow
from ratchet.contract.training import Dataset, Hyperparameters, Lora, TrainingConfig
from ratchet.demo.exams import Exam
from ratchet.demo.plan import ALPHA, RANK, Plan, Supervised
from ratchet.engine_local.domain.answers import Completion
from ratchet.engine_local.domain.requests import Sampling
from ratchet.engine_local.torch_batch import Batch, Job
from ratchet.engine_local.torch_policies import Served, load_weights, merge_adapter, serve
from ratchet.trainer_worker.errors import Diverged
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Step
from ratchet.trainer_worker.training.checkpoints import Checkpoint
from ratchet.trainer_worker.training.policy import load_policy, save_policy
from ratchet_helpdesk import ROLE
from ratchet_helpdesk.agent import MAX_TOKENS
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.heldout import TEMPERATURES, Answer
from ratchet_helpdesk.logbook import Logged, drills, tickets
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

    def logged(self) -> TrajectoryRow:
        """As a snapshot holds it."""
        return TrajectoryRow(
            trajectory_id=self.trajectory_id,
            task_key=self.task.task_id,
            reward=float(self.verdict.success),
            raw_reward=float(self.verdict.success),
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
            self._batch.join(jobs)
            self._batch.step()
        return [seat.played() for seat in self._closed]

    @staticmethod
    def _seat(place: int, task: Task) -> _Seat:
        environment = Environment(task)
        return _Seat(f"{task.task_id}#{place}", task, environment, environment.opening())

    def _job(self, seat: _Seat) -> Job:
        prompt = self._served.text.chat_ids(seat.messages, self._tools)

        def failed(error: Exception) -> None:
            raise error

        return Job(prompt, self._sampling, MAX_TOKENS, lambda done: self._answered(seat, prompt, done), failed)

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
        answer = self._served.text.reply(self._served.text.text(done.token_ids), tools=True)
        reply = answer.message(f"call_{len(seat.calls)}")
        seat.messages += [reply, *seat.environment.answer(reply)]
        (self._ready if seat.environment.open else self._closed).append(seat)


Play = Callable[[], Sequence[PlayedByPolicy]]
"""Plays the tickets of a cycle."""
Rows = Callable[[], Sequence[TrajectoryRow]]
"""Makes what a training learns from; called only if it takes place."""


class Bench:
    """Trains policies into folders below `root`, with the trainer's own algorithms on one thread.

    What is there already is not trained again: everything follows from the seed.
    """

    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan = plan
        self._root = root

    def base(self) -> Path:
        """A model that can call tools and copy, and knows no house rule."""
        random_model = self._root / "random"
        random_model.mkdir(parents=True, exist_ok=True)
        write_base_model(random_model, self._plan.seed, Shape())
        return self._supervised(
            random_model, self._plan.drills, lambda: drills(self._plan.drills.examples, self._plan.seed), "base"
        )

    def first(self, base: Path) -> Path:
        """The policy that imitates the biased clerk."""
        return self._supervised(
            base, self._plan.tickets, lambda: tickets(self._plan.tickets.examples, self._plan.seed), "first"
        )

    def reinforced(self, first: Path, adapter: Path | None, play: Play, number: int) -> Path:
        """The next policy by RLOO, as the demo's job trains it."""
        return self._adapter("rloo", first, adapter, lambda: [one.logged() for one in play()], number)

    def imitating(self, first: Path, adapter: Path | None, play: Play, number: int) -> Path:
        """The next policy by rejection sampling: supervised on the solved tickets alone, in as many passes."""
        return self._adapter(
            "sft", first, adapter, lambda: [one.logged() for one in play() if one.verdict.success], number
        )

    def _supervised(self, base: Path, recipe: Supervised, chats: Callable[[], Iterable[Logged]], name: str) -> Path:
        hyper = Hyperparameters(
            full_finetune=True,
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch,
            max_steps=recipe.steps,
            seed=self._plan.seed,
        )
        return self._train("sft", base, None, hyper, lambda: [_logged(one) for one in chats()], name)

    def _adapter(self, algorithm: str, first: Path, adapter: Path | None, rows: Rows, number: int) -> Path:
        recipe = self._plan.cycle
        hyper = Hyperparameters(
            lora=Lora(r=RANK, alpha=ALPHA),
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch,
            epochs=recipe.epochs,
            kl_beta=0.0 if algorithm == "rloo" else None,
            seed=self._plan.seed + number,
        )
        return self._train(algorithm, first, adapter, hyper, rows, f"{algorithm}-{number}")

    def _train(
        self,
        algorithm: str,
        base: Path,
        adapter: Path | None,
        hyper: Hyperparameters,
        rows: Rows,
        name: str,
    ) -> Path:
        folder = self._root / name
        if folder.is_dir():
            return folder
        torch.manual_seed(hyper.seed or 0)
        spec = _spec(algorithm, base, adapter, hyper)
        policy = load_policy(spec)
        load_train(algorithm)(spec, policy, rows(), Uninterrupted())
        partial = self._root / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        save_policy(policy, partial, str(base))
        return partial.rename(folder)


class Uninterrupted:
    """`algorithms.base.Run` of a training that runs to its end unless it diverges."""

    resume: Checkpoint | None = None

    def started(self, samples: int, total_steps: int) -> None:
        """See `Run`."""

    def stepped(self, step: Step) -> None:
        """See `Run`."""
        if not all(map(math.isfinite, step.metrics.values())):
            raise Diverged(f"train step {step.number} is no longer finite: {dict(step.metrics)}")

    def stop_requested(self) -> bool:
        """See `Run`."""
        return False

    def checkpoint_due(self, step: int) -> bool:  # noqa: ARG002 - the protocol's
        """See `Run`."""
        return False

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """See `Run`."""


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


def _logged(chat: Logged) -> TrajectoryRow:
    """A chat of the log book as a snapshot holds it: without outcome."""
    tools = tool_definitions() if chat.tools else []
    return TrajectoryRow(
        trajectory_id=chat.task_id,
        task_key=chat.task_id,
        reward=0.0,
        raw_reward=0.0,
        source=OFFLINE,
        messages=list(chat.messages),
        tools=tools,
        calls=[],
    )


def _spec(algorithm: str, base: Path, adapter: Path | None, hyper: Hyperparameters) -> JobSpec:
    config = TrainingConfig(
        algorithm=algorithm,
        base_model=str(base),
        dataset=Dataset(source="clickhouse", sample_size=1),
        hyperparameters=hyper,
    )
    return JobSpec(
        training_job_id=str(uuid.UUID(int=0)),
        attempt=1,
        role=ROLE,
        config=config,
        dataset="",
        base=str(base),
        base_name="first",
        threads=1,
        adapter=str(adapter) if adapter else None,
    )
