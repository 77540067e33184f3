"""What a planner is, and what every selector of workers keeps to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.core.contract.workflows import Plan, SubTask, Worker, WorkerMeasures

FLOOR = 0.02
"""Least probability of each capable worker: what no planner ever chooses, no log can judge."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a selector chooses by."""

    instruction: str
    """Of the workflow."""
    plan: Plan
    index: int
    """Of the sub-task."""
    workers: Sequence[Worker]
    """The capable ones, by name; as in the registry, with cost and latency corrected by what was measured."""
    measured: Sequence[WorkerMeasures | None]

    @property
    def sub_task(self) -> SubTask:
        return self.plan.sub_tasks[self.index]


class Planner(Protocol):
    """A planner's policy; it draws nothing itself."""

    @property
    def task_types(self) -> tuple[str, ...]:
        """The vocabulary that it was trained with."""
        ...

    def plan(self, instruction: str) -> Plan:
        """Sub-tasks, dependencies and confidence: the likeliest ones."""
        ...

    def propensities(self, choice: Choice) -> list[float]:
        """Probability of each of `choice.workers`, at least `floor_of(...)` each; they add up to 1."""
        ...


def floor_of(workers: int) -> float:
    """The floor where so many workers are capable: half of all probability at most."""
    return min(FLOOR, 0.5 / workers)


def with_floor(probabilities: Sequence[float]) -> list[float]:
    """A mixture with the uniform choice that leaves no worker below the floor."""
    floor = floor_of(len(probabilities))
    rest = 1.0 - floor * len(probabilities)
    return [floor + rest * probability for probability in probabilities]


class Version0:
    """What plans before a planner was trained: one sub-task, and mostly the cheapest capable worker."""

    def __init__(self, task_types: tuple[str, ...]) -> None:
        self.task_types = task_types

    def plan(self, instruction: str) -> Plan:
        return Plan(sub_tasks=(SubTask(task_type="generation", instruction=instruction),), made_by="single")

    def propensities(self, choice: Choice) -> list[float]:
        cheapest = min(choice.workers, key=lambda worker: (worker.cost_per_token, worker.name))
        return with_floor([float(worker is cheapest) for worker in choice.workers])
