"""What a world of tasks is to the learning report: tasks that policies play, and how the first policy is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Lora
from ratchet.local.demo.plan import Reinforced, Supervised

OFFLINE = "offline"
"""Source of rows that no store has seen."""


class Verdict(Protocol):
    """How an episode ended."""

    @property
    def success(self) -> bool:
        """Whether the task was solved."""
        ...

    @property
    def tool_calls(self) -> int:
        """Calls that the policy made,"""
        ...

    @property
    def valid_tool_calls(self) -> int:
        """and those of them that name a tool with its arguments."""
        ...


class Episode(Protocol):
    """One try at a task."""

    @property
    def open(self) -> bool:
        """Whether the policy has to answer again."""
        ...

    def opening(self) -> list[JsonObject]:
        """The messages that the policy starts from."""
        ...

    def answer(self, reply: JsonObject) -> list[JsonObject]:
        """What the world says to an assistant message; nothing once the episode is closed."""
        ...

    def verdict(self) -> Verdict:
        """Of a closed episode."""
        ...


class Task(Protocol):
    """Something that a policy can try."""

    @property
    def task_id(self) -> str:
        """The same task has the same one."""
        ...

    @property
    def kind(self) -> str:
        """What the report counts apart."""
        ...

    @property
    def tools(self) -> list[JsonObject]:
        """The tools that the policy is offered."""
        ...

    def begin(self) -> Episode:
        """A new try."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plain `Verdict`."""

    success: bool
    tool_calls: int = 0
    valid_tool_calls: int = 0
    graded: float | None = None
    """The reward, between 0 and 1, where an answer that is not right is worth something too."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One supervised training on the way to the first policy."""

    name: str
    """Of its folder."""
    recipe: Supervised
    rows: Callable[[], Sequence[TrajectoryRow]]
    full_finetune: bool
    """All weights learn; else an adapter."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How policies of a world are served."""

    max_tokens: int
    """Of one answer."""
    seats: int
    """Tasks at work at the same time."""
    prefix_tokens: int
    """Tokens whose keys and values are kept."""
    together: int = 1
    """While answers are being written, so many prompts wait for each other. More than one: those of like length are
    computed in one pass, instead of all that are there."""
    dtype: str | None = None
    """To compute in; None: as the model is stored."""


class World(Protocol):
    """Tasks, and how the policies of one seed are made for them."""

    @property
    def seed(self) -> int:
        """It draws what differs from cell to cell."""
        ...

    @property
    def engine(self) -> Engine:
        """How its policies are served."""
        ...

    @property
    def cycle(self) -> Reinforced:
        """How a policy learns from what was played."""
        ...

    @property
    def lora(self) -> Lora:
        """The shape of every adapter."""
        ...

    @property
    def precision(self) -> str:
        """What trainings compute in, by a request's name."""
        ...

    @property
    def exam_seed(self) -> int:
        """Of the draws in a held-out exam."""
        ...

    @property
    def judges_base(self) -> bool:
        """Whether the model before the first policy takes the exam too."""
        ...

    def recipe(self) -> Mapping[str, float]:
        """What all cells do alike, in numbers."""
        ...

    def base(self, root: Path) -> Path:
        """The model before any training, made below `root` unless it is elsewhere already."""
        ...

    def stages(self) -> Sequence[Stage]:
        """The trainings that make the first policy, in order."""
        ...

    def training(self, count: int, seed: int) -> list[Task]:
        """Tasks to learn from."""
        ...

    def held_out(self) -> list[Task]:
        """The tasks of every exam, which nothing learns from."""
        ...
