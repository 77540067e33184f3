"""A planner that was trained: a head that plans, and a selector of workers."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from ratchet.core.contract.workflows import Plan
from ratchet.core.planning.base import Choice


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
