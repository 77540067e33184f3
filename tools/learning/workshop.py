"""Policies made in one process, by the trainer's own algorithms: without bus, services or snapshots.

Everything follows from the seed, and what is in the folder already is not made again.
"""

from __future__ import annotations

import gc
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from ratchet.core.contract.training import Compute, Dataset, Hyperparameters, TrainingConfig
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.service.files import write_whole
from ratchet.local.demo.exams import Exam
from ratchet.local.engine_local.torch_policies import Served
from ratchet.local.number_format import fastest_format
from ratchet.trainer_worker.errors import Diverged
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint
from ratchet.trainer_worker.training.policy import load_policy, save_policy
from ratchet_helpdesk import ROLE
from ratchet_helpdesk.heldout import Answer
from tools.learning.folders import alone, becoming
from tools.learning.offline import PlayedByPolicy, Sampler, serve_folder, take_exam
from tools.learning.worlds.base import Stage, Task, World

FIGURES, EXAM = "figures.json", "exam.json"
"""Beside a policy's files: what its training measured, and its exam."""
NUMBER_FORMAT = "number-format"


def kept_format(work: Path) -> str:
    """The number format of all cells on public tasks in a folder: the fastest one, measured by the first of them.

    Cells are compared with each other, and a cell that was stopped goes on as it began. Which format is the fastest
    depends on the machine: where cores have instructions for bfloat16, that one takes less time than float32.
    """
    kept = work / NUMBER_FORMAT
    with alone(work):
        if not kept.is_file():
            write_whole(kept, fastest_format().encode())
        return kept.read_text()


class TakenExam(msgspec.Struct, frozen=True):
    """What the file of an exam holds."""

    answers: list[Answer]
    seconds: float
    """That it took,"""
    processor_s: float = 0.0
    """and of them on a processor."""


Rows = Callable[[], Sequence[Any]]
"""Makes what a training learns from; called only if it takes place. `Any`: every format of rows has its own type."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training of an adapter."""

    algorithm: str
    options: Mapping[str, Any]
    """Hyperparameters beside those of the world's recipe; `Any` because they are a request's."""
    number: int
    """Of the cycle: it changes the order of the data."""
    rows: Rows
    noted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures beside those of the training; `rows` may add to them."""


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
    """Makes the policies of one seed of a world, in folders below `root`."""

    def __init__(self, world: World, root: Path, threads: int = 1) -> None:
        self.world = world
        self._root = root
        self._threads = threads
        root.mkdir(parents=True, exist_ok=True)

    def base(self) -> Policy:
        """The model before any training."""
        with self.alone():
            return Policy(self.world.base(self._root))

    def first(self) -> Policy:
        """The policy before the first cycle."""
        with self.alone():
            policy = Policy(self.world.base(self._root))
            for stage in self.world.stages():
                folder = self.supervised(policy, stage)
                policy = Policy(folder) if stage.full_finetune else Policy(policy.first, folder)
            return policy

    def learn(self, start: Policy, lesson: Lesson, name: str) -> Policy:
        """The next policy: an adapter that goes on from `start`.

        Raises `TrainingFailed` when the training is refused or ends.
        """
        recipe = self.world.cycle
        clipped = "kl_beta" in ALGORITHMS[lesson.algorithm].hyperparameters
        chosen: dict[str, Any] = {"learning_rate": recipe.learning_rate} | ({"kl_beta": 0.0} if clipped else {})
        hyper = Hyperparameters(
            lora=self.world.lora,
            batch_size=recipe.batch,
            epochs=recipe.epochs,
            seed=self.world.seed + lesson.number,
            **chosen | dict(lesson.options),
        )
        return Policy(start.first, self._trained(start, lesson, hyper, name))

    def play(self, policy: Policy, tasks: Sequence[Task], seed: int) -> list[PlayedByPolicy]:
        """Tasks played by sampling."""
        return Sampler(self._served(policy), self.world.engine, seed).play(tasks, 1.0)

    def exam(self, policy: Policy) -> Exam:
        """The held-out exam of a policy; that of a model which lies elsewhere is kept for all seeds."""
        return Exam(self.taken(policy).answers)

    def taken(self, policy: Policy) -> TakenExam:
        """That exam with what it took."""
        own = policy.folder.is_relative_to(self._root)
        kept = (policy.folder if own else self._root.parent) / EXAM
        if kept.is_file():
            return msgspec.json.decode(kept.read_bytes(), type=TakenExam)
        began, computed = time.monotonic(), time.process_time()
        exam = take_exam(self._served(policy), self.world.engine, self.world.held_out(), self.world.exam_seed)
        took = time.monotonic() - began, time.process_time() - computed
        taken = TakenExam(list(exam.answers), *(round(seconds, 1) for seconds in took))
        write_whole(kept, msgspec.json.encode(taken), durable=False)
        return taken

    def _served(self, policy: Policy) -> Served:
        return serve_folder(policy.first, policy.adapter, self.world.engine.dtype)

    def alone(self) -> AbstractContextManager[None]:
        """Hold the seed's folder against other processes, where several need the same policy."""
        return alone(self._root)

    def supervised(self, start: Policy, stage: Stage) -> Path:
        """A policy that imitates; returns its folder."""
        recipe = stage.recipe
        hyper = Hyperparameters(
            full_finetune=stage.full_finetune,
            lora=None if stage.full_finetune else self.world.lora,
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch,
            max_steps=recipe.steps,
            seed=self.world.seed,
        )
        return self._trained(start, Lesson("sft", {}, 0, stage.rows), hyper, stage.name)

    def _trained(self, start: Policy, lesson: Lesson, hyper: Hyperparameters, name: str) -> Path:
        folder = self._root / name
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        gc.collect()  # models lie in reference cycles: a cell of many cycles would keep one of each
        torch.manual_seed(hyper.seed or 0)
        computed = time.process_time()
        rows = lesson.rows()
        began, run = time.monotonic(), Uninterrupted()
        compute = Compute(mixed_precision=self.world.precision, threads=self._threads)
        spec = _spec(lesson.algorithm, start, hyper, compute)
        policy = load_policy(spec)
        outcome = load_train(lesson.algorithm)(spec, policy, rows, run)
        took = {
            "samples": outcome.samples,
            "step_tokens": run.tokens,
            "train_s": round(time.monotonic() - began, 1),
            "processor_s": round(time.process_time() - computed, 1),
        }
        stopped = {"stopped_early": float(outcome.health_stop is not None)}
        with becoming(folder) as partial:
            save_policy(policy, partial, str(start.first))
            (partial / FIGURES).write_bytes(msgspec.json.encode({**outcome.metrics, **took, **stopped, **lesson.noted}))
        return folder


class Uninterrupted:
    """`algorithms.base.Run` of a training that runs to its end unless it diverges."""

    resume: Checkpoint | None = None

    def __init__(self) -> None:
        self.tokens = 0.0
        """Of all rows of all train steps, prompts included."""

    def started(self, samples: int, total_steps: int) -> None:
        """See `Run`."""

    def explained(self, findings: Sequence[str]) -> None:
        """See `Run`."""

    def stepped(self, step: TrainStep) -> None:
        """See `Run`."""
        self.tokens += step.metrics.get("tokens", 0)
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


def _spec(algorithm: str, start: Policy, hyper: Hyperparameters, compute: Compute) -> JobSpec:
    config = TrainingConfig(
        algorithm=algorithm,
        base_model=str(start.first),
        dataset=Dataset(source="clickhouse", sample_size=1),
        hyperparameters=hyper,
        compute=compute,
    )
    return JobSpec(
        training_job_id=str(uuid.UUID(int=0)),
        attempt=1,
        role=ROLE,
        config=config,
        dataset="",
        base=str(start.first),
        base_name="first",
        threads=compute.threads or 1,
        adapter=str(start.adapter) if start.adapter else None,
    )
