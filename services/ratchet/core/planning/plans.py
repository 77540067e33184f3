"""Reads plans that others made, and refuses those that are no graph which a workflow can run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ratchet.bus.message import decode, mismatch
from ratchet.core.contract.workflows import MOST_SUB_TASKS, TASK_TYPES, Plan, SubTask
from ratchet.core.errors import Rejected

MOST_DEPTH = 10
"""Sub-tasks in a row, each waiting for the one before."""


def checked_plan(text: bytes | str) -> Plan:
    """A plan from JSON, `{"sub_tasks": [{task_type, instruction, depends_on, complexity}]}`.

    Raises `Rejected`, in words that its author can mend it by.
    """
    try:
        parts = decode(text, dict[str, msgspec.Raw])
        raw = decode(parts.get("sub_tasks", msgspec.Raw(b"[]")), list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise Rejected(f"the plan is not a JSON object with a list `sub_tasks`: {mismatch(error)[0]}") from error
    if not 1 <= len(raw) <= MOST_SUB_TASKS:
        raise Rejected(f"the plan has {len(raw)} sub-tasks; it must have 1 to {MOST_SUB_TASKS}")
    plan = Plan(sub_tasks=tuple(_sub_task(index, part) for index, part in enumerate(raw)), made_by="llm")
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Raises `Rejected` for too many sub-tasks, unknown types, empty instructions, cycles, and what is too deep."""
    if not 1 <= len(plan.sub_tasks) <= MOST_SUB_TASKS:
        raise Rejected(f"the plan has {len(plan.sub_tasks)} sub-tasks; it must have 1 to {MOST_SUB_TASKS}")
    for index, task in enumerate(plan.sub_tasks):
        if task.task_type not in TASK_TYPES:
            raise Rejected(
                f"sub-task {index} has the unknown type {task.task_type[:40]!r}; there are {', '.join(TASK_TYPES)}"
            )
        if not task.instruction.strip():
            raise Rejected(f"sub-task {index} has an empty instruction")
    _check_order(plan.sub_tasks)
    deepest = max(depths(plan.sub_tasks))
    if deepest > MOST_DEPTH:
        raise Rejected(f"{deepest} sub-tasks of the plan wait for one another in a row; {MOST_DEPTH} may")


def depths(sub_tasks: Sequence[SubTask]) -> list[int]:
    """For each sub-task, how many are in the longest row that ends with it. Each depends on earlier ones alone."""
    result: list[int] = []
    for task in sub_tasks:
        result.append(1 + max((result[before] for before in task.depends_on), default=0))
    return result


def sinks(plan: Plan) -> list[int]:
    """The sub-tasks that nothing depends on: their outputs are the result."""
    needed = {before for part in plan.sub_tasks for before in part.depends_on}
    return [index for index in range(len(plan.sub_tasks)) if index not in needed]


def _sub_task(index: int, raw: msgspec.Raw) -> SubTask:
    try:
        task = decode(bytes(raw), SubTask)
    except msgspec.DecodeError as error:
        reason, place = mismatch(error)
        raise Rejected(f"sub-task {index} cannot be read{f' at {place}' if place else ''}: {reason}") from error
    return msgspec.structs.replace(task, depends_on=tuple(sorted(set(task.depends_on))))


def _check_order(sub_tasks: Sequence[SubTask]) -> None:
    for index, task in enumerate(sub_tasks):
        for other in task.depends_on:
            if other >= len(sub_tasks):
                raise Rejected(f"sub-task {index} depends on sub-task {other}, which the plan does not have")
    for index, task in enumerate(sub_tasks):
        for other in task.depends_on:
            if other < index:
                continue
            if _leads_back(sub_tasks, other, index):
                raise Rejected(f"sub-tasks {index} and {other} wait for each other: the plan has a cycle")
            raise Rejected(f"sub-task {index} depends on sub-task {other}, which comes after it: put it after {other}")


def _leads_back(sub_tasks: Sequence[SubTask], start: int, goal: int) -> bool:
    """Whether `start` depends on `goal`, itself or through others."""
    seen: set[int] = set()
    left = [start]
    while left:
        node = left.pop()
        if node == goal:
            return True
        if node not in seen:
            seen.add(node)
            left.extend(sub_tasks[node].depends_on)
    return False
