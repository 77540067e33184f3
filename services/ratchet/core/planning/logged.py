"""Decisions as the log of executions has them: what any planner would have been asked, and what was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ratchet.core.contract.workflows import SubTask, SubTaskRun, Worker, WorkerMeasures, WorkerOption, WorkflowExecution
from ratchet.core.planning.base import Choice
from ratchet.core.planning.learned import TEST, part_of
from ratchet.core.planning.rewards import is_judged


@dataclass(frozen=True, slots=True)
class Decision:
    """A worker that was chosen, and asked if the budget had room for it."""

    choice: Choice
    chosen: int
    """Index in `choice.workers`."""
    propensity: float
    """Logged, of the chosen one."""
    run: SubTaskRun
    failed_before: int
    """Earlier sub-tasks of the plan that failed: what the critic knows beside the choice."""


def decisions(row: WorkflowExecution) -> Iterator[Decision]:
    """Those of an execution, in the order of the plan; without sub-tasks that were cancelled or had no draw."""
    if row.plan is None:
        return
    for index, run in enumerate(row.runs[: len(row.plan.sub_tasks)]):
        names = [option.worker for option in run.options]
        if not is_judged(run) or run.worker not in names or not run.propensity:
            continue
        task = row.plan.sub_tasks[index]
        choice = Choice(
            instruction=row.instruction,
            plan=row.plan,
            index=index,
            workers=[_worker(option, task) for option in run.options],
            measured=[_measures(option) for option in run.options],
        )
        failed = sum(earlier.status == "failed" for earlier in row.runs[:index])
        yield Decision(choice, names.index(run.worker), run.propensity, run, failed)


def learnable(rows: Sequence[WorkflowExecution]) -> list[WorkflowExecution]:
    """Executions that selectors learn from: those with a decision that are not of the test part."""
    return [row for row in rows if part_of(row.workflow_id) != TEST and any(decisions(row))]


def options_of(choice: Choice, propensities: Sequence[float]) -> tuple[WorkerOption, ...]:
    """What a choice is logged as: all that the planner chose by, so that the log can be asked again."""
    return tuple(
        WorkerOption(
            worker=worker.name,
            propensity=min(1.0, propensity),
            model_type=worker.model_type,
            cost_per_token=worker.cost_per_token,
            latency_ms=worker.latency_ms,
            success=measured.success if measured else None,
        )
        for worker, measured, propensity in zip(choice.workers, choice.measured, propensities, strict=True)
    )


def _worker(option: WorkerOption, task: SubTask) -> Worker:
    return Worker(
        name=option.worker,
        model_type=option.model_type,
        capabilities=(task.task_type,),
        model=option.worker,
        cost_per_token=option.cost_per_token,
        latency_ms=option.latency_ms,
    )


def _measures(option: WorkerOption) -> WorkerMeasures | None:
    """The share of success alone: planners choose by no other measure that the option does not already correct."""
    if option.success is None:
        return None
    return WorkerMeasures(calls=1, success=option.success, latency_ms=option.latency_ms, cost_usd=0.0)
