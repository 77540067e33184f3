"""Public tasks and SmolLM2: the first policy imitates a few demonstrations with an adapter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ratchet.bus.message import JsonObject
from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Lora
from ratchet.core.errors import RatchetError
from ratchet.local.demo.plan import Reinforced, Supervised
from ratchet.local.smollm2 import smollm2
from tools.learning.worlds.base import OFFLINE, Engine, Stage, Task

LORA = Lora(r=16, alpha=32)
EXAM_SEED = 11


class NoTasks(RatchetError):
    """The package with the tasks is not installed."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task with an answer to imitate."""

    task: Task
    messages: list[JsonObject]

    def row(self, number: int) -> TrajectoryRow:
        """As a snapshot holds it: without outcome."""
        return TrajectoryRow(
            trajectory_id=f"{self.task.task_id} shown {number}",
            task_key=self.task.task_id,
            reward=0.0,
            raw_reward=0.0,
            source=OFFLINE,
            messages=self.messages,
            tools=self.task.tools,
            calls=[],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTasks:
    """`World` of tasks that others published."""

    seed: int
    tasks: Sequence[Task]
    """To learn from."""
    exam: Sequence[Task]
    """Held out."""
    shown: Sequence[Demonstration]
    """Of training tasks; a seed draws from them."""
    engine: Engine
    imitation: Supervised
    cycle: Reinforced
    lora: Lora = LORA
    precision: str = "fp32"
    """Of the trainer: the engine's, see `computed_in`."""
    exam_seed: int = EXAM_SEED
    model: Callable[[], Path] = smollm2
    """Where the model before any training lies."""
    judges_base: bool = True

    def computed_in(self, number_format: str) -> PublicTasks:
        """The same, with engine and trainer in that format: what one samples the other scores."""
        precision = {FLOAT32: "fp32", BFLOAT16: "bf16"}[number_format]
        return replace(self, engine=replace(self.engine, dtype=number_format), precision=precision)

    def recipe(self) -> Mapping[str, float]:
        """See `World`."""
        return {
            "training tasks": len(self.tasks),
            "held-out tasks": len(self.exam),
            "demonstrations": self.imitation.examples,
            "imitation steps": self.imitation.steps,
            "imitation batch": self.imitation.batch,
            "imitation rate": self.imitation.learning_rate,
            "rank": self.lora.r,
            "bits of a number": 16 if self.precision == "bf16" else 32,
            "learning rate": self.cycle.learning_rate,
            "passes": self.cycle.epochs,
            "batch": self.cycle.batch,
            "tokens of an answer": self.engine.max_tokens,
        }

    def base(self, root: Path) -> Path:  # noqa: ARG002 - the protocol's
        """See `World`: SmolLM2, kept for all that use it."""
        return self.model()

    def stages(self) -> Sequence[Stage]:
        """See `World`."""
        rows = partial(self.demonstrations, self.imitation.examples, str(self.seed))
        return [Stage("first", self.imitation, rows, full_finetune=False)]

    def training(self, count: int, seed: int) -> list[Task]:
        """See `World`: each task once before any comes again."""
        draw = random.Random(f"training {seed}")
        drawn: list[Task] = []
        while len(drawn) < count:
            drawn += draw.sample(self.tasks, min(count - len(drawn), len(self.tasks)))
        return drawn

    def held_out(self) -> list[Task]:
        """See `World`."""
        return list(self.exam)

    def demonstrations(self, count: int, drawn: str) -> list[TrajectoryRow]:
        """So many right answers, or all that there are."""
        some = random.Random(f"shown {drawn}").sample(self.shown, min(count, len(self.shown)))
        return [shown.row(number) for number, shown in enumerate(some)]
