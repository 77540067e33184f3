"""A planner that was trained: a head that plans, and a selector of workers."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from ratchet.core.contract.workflows import Plan
from ratchet.core.planning.base import Choice

TRAIN, VALIDATION, TEST = "train", "validation", "test"


class Head(Protocol):
    """What makes plans."""

    def plan(self, instruction: str) -> Plan:
        """The likeliest one."""
        ...


class Selector(Protocol):
    """What chooses workers."""

    def propensities(self, choice: Choice) -> list[float]:
        """As `base.Planner` has it."""
        ...


@dataclass(frozen=True, slots=True)
class LearnedPlanner:
    """A `base.Planner` from a file."""

    task_types: tuple[str, ...]
    head: Head
    selector: Selector
    trained_on: AbstractSet[str]
    """`execution_digest` of each execution that it has learned from, or a planner that it continues."""

    def plan(self, instruction: str) -> Plan:
        """Sub-tasks, dependencies and confidence."""
        return self.head.plan(instruction)

    def propensities(self, choice: Choice) -> list[float]:
        """Of the selector, its floor included."""
        return self.selector.propensities(choice)


def execution_digest(workflow_id: str) -> str:
    """What a planner's file names an execution by: it says nothing about the workflow, and finds it again."""
    return sha256(workflow_id.encode()).hexdigest()[:16]


def part_of(workflow_id: str) -> str:
    """Where an execution belongs, whatever came of it, in every training alike: 20 % `VALIDATION`, 15 % `TEST`.

    No algorithm learns from the test part, so that the log that a planner was trained on can also judge it.
    """
    share = int(execution_digest(workflow_id)[:8], 16) / 2**32
    return VALIDATION if share < 0.2 else TEST if share < 0.35 else TRAIN
