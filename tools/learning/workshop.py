"""Policies made in one process, by the trainer's own algorithms on one thread: without bus, services or snapshots.

Everything follows from the seed, and what is in the folder already is not made again.
"""

from __future__ import annotations

import fcntl
import math
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.contract.training import Dataset, Hyperparameters, Lora, TrainingConfig
from ratchet.demo.exams import Exam
from ratchet.demo.plan import ALPHA, RANK, Plan, Supervised
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.service.files import write_whole
from ratchet.trainer_worker.errors import Diverged
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint
from ratchet.trainer_worker.training.policy import load_policy, save_policy
from ratchet_helpdesk import ROLE
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.heldout import Answer
from ratchet_helpdesk.logbook import Logged, drills, tickets
from ratchet_helpdesk.world import tool_definitions
from tools.learning.offline import OFFLINE, PlayedByPolicy, Sampler, serve_folder, take_exam

FIGURES, EXAM = "figures.json", "exam.json"
"""Beside a policy's files: what its training measured, and its answers in the exam."""

Rows = Callable[[], Sequence[Any]]
"""Makes what a training learns from; called only if it takes place. `Any`: every format of rows has its own type."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training of an adapter."""

    algorithm: str
    options: Mapping[str, Any]
    """Hyperparameters beside those of the demo's recipe; `Any` because they are a request's."""
    number: int
    """Of the cycle: it changes the order of the data."""
    rows: Rows


@dataclass(frozen=True, slots=True)
class Policy:
    """The first policy, or an adapter on it."""

    first: Path
    adapter: Path | None = None

    @property
    def folder(self) -> Path:
        """Its own files."""
        return self.adapter or self.first

    def figures(self) -> Mapping[str, float]:
        """What its training measured last."""
        return msgspec.json.decode((self.folder / FIGURES).read_bytes(), type=dict[str, float])


class Workshop:
    """Makes the policies of one seed, in folders below `root`."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan = plan
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def first(self) -> Policy:
        """The policy that imitates the biased clerk, on a base that can call tools and copy and knows no house rule."""
        random_model = self._root / "random"
        with self.alone():
            if not random_model.is_dir():
                with _becoming(random_model) as partial:
                    write_base_model(partial, self._plan.seed, Shape())
            base = self._supervised(
                random_model, self._plan.drills, lambda: drills(self._plan.drills.examples, self._plan.seed), "base"
            )
            return Policy(
                self._supervised(
                    base, self._plan.tickets, lambda: tickets(self._plan.tickets.examples, self._plan.seed), "first"
                )
            )

    def learn(self, start: Policy, lesson: Lesson, name: str) -> Policy:
        """The next policy: an adapter that goes on from `start`.

        Raises `TrainingFailed` when the training is refused or ends.
        """
        recipe = self._plan.cycle
        clipped = "kl_beta" in ALGORITHMS[lesson.algorithm].hyperparameters
        chosen: dict[str, Any] = ({"kl_beta": 0.0} if clipped else {}) | dict(lesson.options)
        hyper = Hyperparameters(
            lora=Lora(r=RANK, alpha=ALPHA),
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch,
            epochs=recipe.epochs,
            seed=self._plan.seed + lesson.number,
            **chosen,
        )
        return Policy(start.first, self._trained(lesson.algorithm, start, hyper, lesson.rows, name))

    def play(self, policy: Policy, tasks: Sequence[Any], seed: int) -> list[PlayedByPolicy]:
        """Tickets played by sampling; `Any` is the world's task."""
        return Sampler(serve_folder(policy.first, policy.adapter), 1.0, seed).play(tasks)

    def exam(self, policy: Policy) -> Exam:
        """The held-out exam of a policy."""
        kept, rollouts = policy.folder / EXAM, self._plan.rollouts
        if kept.is_file():
            return Exam(msgspec.json.decode(kept.read_bytes(), type=list[Answer]))
        served = serve_folder(policy.first, policy.adapter)
        exam = take_exam(served, rollouts.heldout_tasks, rollouts.heldout_seed)
        write_whole(kept, msgspec.json.encode(exam.answers), durable=False)
        return exam

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold the seed's folder against other processes, where several need the same policy."""
        with (self._root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _supervised(self, base: Path, recipe: Supervised, chats: Callable[[], Iterable[Logged]], name: str) -> Path:
        hyper = Hyperparameters(
            full_finetune=True,
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch,
            max_steps=recipe.steps,
            seed=self._plan.seed,
        )
        return self._trained("sft", Policy(base), hyper, lambda: [_logged(one) for one in chats()], name)

    def _trained(self, algorithm: str, start: Policy, hyper: Hyperparameters, rows: Rows, name: str) -> Path:
        folder = self._root / name
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(hyper.seed or 0)
        spec = _spec(algorithm, start, hyper)
        policy = load_policy(spec)
        outcome = load_train(algorithm)(spec, policy, rows(), Uninterrupted())
        with _becoming(folder) as partial:
            save_policy(policy, partial, str(start.first))
            (partial / FIGURES).write_bytes(msgspec.json.encode(outcome.metrics))
        return folder


class Uninterrupted:
    """`algorithms.base.Run` of a training that runs to its end unless it diverges."""

    resume: Checkpoint | None = None

    def started(self, samples: int, total_steps: int) -> None:
        """See `Run`."""

    def explained(self, findings: Sequence[str]) -> None:
        """See `Run`."""

    def stepped(self, step: TrainStep) -> None:
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


@contextmanager
def _becoming(folder: Path) -> Generator[Path]:
    """A folder to fill, which gets its name when it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    yield partial
    partial.rename(folder)


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


def _spec(algorithm: str, start: Policy, hyper: Hyperparameters) -> JobSpec:
    config = TrainingConfig(
        algorithm=algorithm,
        base_model=str(start.first),
        dataset=Dataset(source="clickhouse", sample_size=1),
        hyperparameters=hyper,
    )
    return JobSpec(
        training_job_id=str(uuid.UUID(int=0)),
        attempt=1,
        role=ROLE,
        config=config,
        dataset="",
        base=str(start.first),
        base_name="first",
        threads=1,
        adapter=str(start.adapter) if start.adapter else None,
    )
