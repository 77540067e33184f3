"""Logs of executions as the rows that planners learn from, and more rows made of them.

A row keeps what the log has and makes nothing up: an execution that lacks something is left out, and counted by its
reason. Rows that `augmented` makes never pass for what was executed: see `TrainingSubTask.substituted_for`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ratchet.bus.message import decode
from ratchet.core.contract.workflows import Plan, SubTaskRun, WorkerOption, WorkflowExecution
from ratchet.core.planning.rewards import is_judged, workflow_reward

PLANNING_FAILED = "planning failed"


class TrainingSubTask(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-task, its choice and what came of it. Every member is written: a reader needs no defaults."""

    task_type: str
    instruction: str
    depends_on: tuple[int, ...]
    complexity: float
    status: str
    worker: str | None
    """Who was chosen; null where none was asked."""
    propensity: float | None
    """Of the choice when it was drawn; null also for a substitute, which no selector drew."""
    options: tuple[WorkerOption, ...]
    cost_usd: float | None
    latency_ms: float | None
    """Null, as the cost, where nothing was measured: of a substitute."""
    substituted_for: str | None = None
    """The worker that was asked in truth, where `worker` is a substitute: learn by imitation alone from such a row."""

    @property
    def was_executed(self) -> bool:
        """Whether a selector drew its worker, also if the budget then had no room: what off-policy learners may use."""
        return self.substituted_for is None and self.propensity is not None and self.status != "cancelled"


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as planners learn from it, one line of a training set."""

    workflow_id: str
    """Also of a row made of another: all rows of an execution belong to one side of a split."""
    timestamp: str
    instruction: str
    role: str
    policy: str
    """The planner's policy and version, such as `planner@3`."""
    user_ref: str | None
    sub_tasks: tuple[TrainingSubTask, ...]
    success: bool
    """This, cost and latency are those of the execution, also in a row that was made of it."""
    cost_usd: float
    latency_ms: float
    reward: float | None
    """Of the execution (`rewards.workflow_reward`); null where a worker was substituted, whose reward is unknown."""
    order: tuple[int, ...] | None = None
    """Where sub-tasks stand in another order: the index that each had in the execution."""

    @property
    def is_augmented(self) -> bool:
        """Whether it differs from its execution."""
        return self.order is not None or any(sub_task.substituted_for is not None for sub_task in self.sub_tasks)


def prepared(lines: Iterable[bytes], left_out: Counter[str]) -> Iterator[TrainingRow]:
    """The rows of a log, one execution a line; those that cannot be used are counted in `left_out` by reason."""
    seen: set[str] = set()
    for line in lines:
        if not line.strip():
            continue
        try:
            execution = decode(line, WorkflowExecution)
        except (msgspec.DecodeError, RecursionError):
            left_out["not an execution: a member is missing or wrong"] += 1
            continue
        plan = execution.plan
        reason = "logged twice" if execution.workflow_id in seen else unusable(execution, plan)
        if plan is None or reason is not None:
            left_out[reason or PLANNING_FAILED] += 1
            continue
        seen.add(execution.workflow_id)
        yield row_of(execution, plan)


def unusable(execution: WorkflowExecution, plan: Plan | None) -> str | None:
    """Why nothing can be learned of an execution; None for one that is whole."""
    if plan is None:
        return PLANNING_FAILED
    if len(execution.runs) != len(plan.sub_tasks):
        return "not one run for each sub-task"
    if any(before >= index for index, each in enumerate(plan.sub_tasks) for before in each.depends_on):
        return "a sub-task depends on a later one"
    if execution.status == "cancelled":
        return "cancelled"
    judged = [run for run in execution.runs if is_judged(run)]
    if not judged:
        return "no worker was asked"
    return next((reason for run in judged if (reason := _without_choice(run)) is not None), None)


def _without_choice(run: SubTaskRun) -> str | None:
    if run.worker is None or run.propensity is None:
        return "a choice without worker or propensity"
    if run.worker not in {option.worker for option in run.options}:
        return "a chosen worker that was not capable"
    return None


def row_of(execution: WorkflowExecution, plan: Plan) -> TrainingRow:
    """The row of an execution that is usable."""
    return TrainingRow(
        workflow_id=execution.workflow_id,
        timestamp=execution.timestamp.isoformat(),
        instruction=execution.instruction,
        role=execution.role,
        policy=policy_of(execution),
        user_ref=execution.user_ref,
        sub_tasks=tuple(
            TrainingSubTask(
                task_type=sub_task.task_type,
                instruction=sub_task.instruction,
                depends_on=sub_task.depends_on,
                complexity=sub_task.complexity,
                status=run.status,
                worker=run.worker,
                propensity=run.propensity,
                options=run.options,
                cost_usd=run.cost_usd,
                latency_ms=run.latency_ms,
            )
            for sub_task, run in zip(plan.sub_tasks, execution.runs, strict=True)
        ),
        success=execution.success,
        cost_usd=execution.cost_usd,
        latency_ms=execution.latency_ms,
        reward=workflow_reward(execution),
    )


def policy_of(execution: WorkflowExecution) -> str:
    """Name of the planner's policy, as other commands have it."""
    return f"{execution.role}@{execution.policy.version}"


def augmented(row: TrainingRow, times: int, random_: random.Random) -> Iterator[TrainingRow]:
    """`times` variants of a row that was executed: other orders that respect dependencies, and for one sub-task
    another capable worker where there is one. A row that has neither yields none; the same variant comes once."""
    seen = {(row.sub_tasks, row.order)}
    for _ in range(times):
        made = substituted(reordered(row, random_), random_)
        if made.is_augmented and (made.sub_tasks, made.order) not in seen:
            seen.add((made.sub_tasks, made.order))
            yield made


def variants(execution: WorkflowExecution, times: int, random_: random.Random) -> Iterator[WorkflowExecution]:
    """What `augmented` makes of an execution, as executions to imitate: what was measured in it is not theirs."""
    plan = execution.plan
    if plan is None or unusable(execution, plan) is not None:
        return
    for row in augmented(row_of(execution, plan), times, random_):
        order = row.order or range(len(row.sub_tasks))
        taken = list(zip(order, row.sub_tasks, strict=True))
        sub_tasks = tuple(replace(plan.sub_tasks[old], depends_on=made.depends_on) for old, made in taken)
        runs = tuple(_asked(execution.runs[old], made.worker) for old, made in taken)
        yield replace(execution, plan=replace(plan, sub_tasks=sub_tasks), runs=runs)


def _asked(run: SubTaskRun, worker: str | None) -> SubTaskRun:
    """With a worker in the place of the one that was asked."""
    if worker == run.worker:
        return run
    propensity = next(option.propensity for option in run.options if option.worker == worker)
    return replace(run, worker=worker, propensity=propensity)


def reordered(row: TrainingRow, random_: random.Random) -> TrainingRow:
    """The sub-tasks in a random order in which each still comes after those that it depends on."""
    order = _order(row.sub_tasks, random_)
    if order == list(range(len(order))):
        return row
    place = {old: new for new, old in enumerate(order)}
    moved = tuple(
        replace(sub_task, depends_on=tuple(sorted(place[before] for before in sub_task.depends_on)))
        for sub_task in (row.sub_tasks[old] for old in order)
    )
    return replace(row, sub_tasks=moved, order=tuple(order))


def _order(sub_tasks: Sequence[TrainingSubTask], random_: random.Random) -> list[int]:
    waiting = {index: set(sub_task.depends_on) for index, sub_task in enumerate(sub_tasks)}
    order: list[int] = []
    while waiting:
        chosen = random_.choice([index for index, before in waiting.items() if not before])
        order.append(chosen)
        del waiting[chosen]
        for before in waiting.values():
            before.discard(chosen)
    return order


def substituted(row: TrainingRow, random_: random.Random) -> TrainingRow:
    """One sub-task with another worker that was capable of it, of which nothing was measured."""
    places = [index for index, sub_task in enumerate(row.sub_tasks) if _others(sub_task)]
    if not places:
        return row
    index = random_.choice(places)
    asked = row.sub_tasks[index]
    made = replace(
        asked,
        worker=random_.choice(_others(asked)),
        propensity=None,
        cost_usd=None,
        latency_ms=None,
        substituted_for=asked.worker,
    )
    return replace(row, sub_tasks=(*row.sub_tasks[:index], made, *row.sub_tasks[index + 1 :]), reward=None)


def _others(sub_task: TrainingSubTask) -> list[str]:
    if sub_task.worker is None:
        return []
    return [option.worker for option in sub_task.options if option.worker != sub_task.worker]
