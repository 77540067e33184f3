"""The demo's world in the learning report: the help desk, and a first policy that imitates its biased clerk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Lora
from ratchet.local.demo.plan import ALPHA, RANK, Plan, Reinforced, Supervised
from ratchet_helpdesk.logbook import Logged, drills, tickets
from ratchet_helpdesk.world import (
    HELD_OUT,
    MAX_TOKENS,
    TRAIN,
    Environment,
    Task as Ticket,
    draw_tasks,
    kind_of,
    tool_definitions,
)
from tools.learning.folders import becoming
from tools.learning.worlds.base import OFFLINE, Engine, Stage, Task


@dataclass(frozen=True, slots=True)
class HelpdeskTask:
    """A ticket."""

    ticket: Ticket

    @property
    def task_id(self) -> str:
        """See `Task`."""
        return self.ticket.task_id

    @property
    def kind(self) -> str:
        """See `Task`."""
        return kind_of(self.ticket)

    @property
    def tools(self) -> list[JsonObject]:
        """See `Task`."""
        return tool_definitions()

    def begin(self) -> Environment:
        """See `Task`."""
        return Environment(self.ticket)


@dataclass(frozen=True, slots=True)
class Helpdesk:
    """`World` of the demo's plan."""

    plan: Plan
    judges_base: bool = False
    precision: str = "fp32"

    @property
    def seed(self) -> int:
        """See `World`."""
        return self.plan.seed

    @property
    def engine(self) -> Engine:
        """See `World`; system prompt and tools are the same in every ticket."""
        return Engine(MAX_TOKENS, seats=128, prefix_tokens=20_000)

    @property
    def cycle(self) -> Reinforced:
        """See `World`."""
        return self.plan.cycle

    @property
    def lora(self) -> Lora:
        """See `World`."""
        return Lora(r=RANK, alpha=ALPHA)

    @property
    def exam_seed(self) -> int:
        """See `World`."""
        return self.plan.rollouts.heldout_seed

    def recipe(self) -> Mapping[str, float]:
        """See `World`."""
        return recipe_of(self.plan)

    def base(self, root: Path) -> Path:
        """See `World`: a random model, or the drilled one of the package."""
        # Torch takes seconds to import, and the report is drawn without it.
        from ratchet_helpdesk.base_model import Shape, write_base_model  # noqa: PLC0415

        model = root / ("shipped" if self.plan.shipped else "random")
        if not model.is_dir():
            with becoming(model) as partial:
                write_base_model(partial, None if self.plan.shipped else self.seed, Shape())
        return model

    def stages(self) -> Sequence[Stage]:
        """See `World`: call grammar and copying from drills, unless the model has them; then the clerk's tickets."""
        plan, seed, drilled = self.plan, self.seed, _drilled(self.plan)
        base = Stage("base", drilled, lambda: rows_of_chats(drills(drilled.examples, seed)), full_finetune=True)
        first = Stage(
            "first", plan.tickets, lambda: rows_of_chats(tickets(plan.tickets.examples, seed)), full_finetune=True
        )
        return [first] if plan.shipped else [base, first]

    def training(self, count: int, seed: int) -> list[Task]:
        """See `World`."""
        return [HelpdeskTask(task) for task in draw_tasks(TRAIN, count, seed)]

    def held_out(self) -> list[Task]:
        """See `World`: the tickets that the gate plays."""
        rollouts = self.plan.rollouts
        return [HelpdeskTask(task) for task in draw_tasks(HELD_OUT, rollouts.heldout_tasks, rollouts.heldout_seed)]


def recipe_of(plan: Plan) -> dict[str, float]:
    """The plan in numbers, as the report names them."""
    return {
        "drills": _drilled(plan).examples,
        "drill steps": _drilled(plan).steps,
        "clerk's tickets": plan.tickets.examples,
        "imitation steps": plan.tickets.steps,
        "learning rate": plan.cycle.learning_rate,
        "passes": plan.cycle.epochs,
        "batch": plan.cycle.batch,
        "held-out tickets": plan.rollouts.heldout_tasks,
    }


def rows_of_chats(chats: Iterable[Logged]) -> list[TrajectoryRow]:
    """Chats of the log book as a snapshot holds them: without outcome."""
    return [
        TrajectoryRow(
            trajectory_id=chat.task_id,
            task_key=chat.task_id,
            reward=0.0,
            raw_reward=0.0,
            source=OFFLINE,
            messages=list(chat.messages),
            tools=tool_definitions() if chat.tools else [],
            calls=[],
        )
        for chat in chats
    ]


def _drilled(plan: Plan) -> Supervised:
    assert plan.drills is not None  # noqa: S101 - a plan of the help desk, whose base model is made
    return plan.drills
