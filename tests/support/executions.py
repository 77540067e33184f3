"""Executions of workflows, as the log has them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.workflows import Plan, SubTask, SubTaskRun, WorkerOption, WorkflowExecution

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
CAPABLE = ("cheap", "good", "quick")


def options(*chances: float) -> tuple[WorkerOption, ...]:
    """The capable workers with these propensities."""
    return tuple(
        WorkerOption(worker=name, propensity=chance, model_type="llm", cost_per_token=0.001, latency_ms=100.0)
        for name, chance in zip(CAPABLE, chances, strict=False)
    )


def run_of(worker: str = "cheap", *, status: str = "succeeded", cost_usd: float = 0.01) -> SubTaskRun:
    """A sub-task that `worker` was asked to do."""
    chances = dict(zip(CAPABLE, (0.7, 0.2, 0.1), strict=True))
    return SubTaskRun(
        status=status,
        options=options(*chances.values()),
        worker=worker,
        propensity=chances[worker],
        cost_usd=cost_usd,
        latency_ms=120.0,
        output_chars=5,
        started_at=AT,
    )


PLAN = Plan(
    sub_tasks=(
        SubTask(task_type="text_extraction", instruction="read the file", complexity=0.2),
        SubTask(task_type="analysis", instruction="compare the years"),
        SubTask(task_type="summarization", instruction="write it up", depends_on=(0, 1), complexity=0.8),
    ),
    made_by="model",
    confidence=0.9,
)


def execution(
    number: int = 0,
    *,
    plan: Plan | None = PLAN,
    runs: tuple[SubTaskRun, ...] | None = None,
    version: int = 1,
    status: str = "succeeded",
) -> WorkflowExecution:
    """The execution of that number: one of `PLAN` whose sub-tasks all succeeded, unless something else is given."""
    made = runs if runs is not None else tuple(run_of() for _ in plan.sub_tasks) if plan is not None else ()
    return WorkflowExecution(
        workflow_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:execution:{number}")),
        timestamp=AT + timedelta(minutes=number),
        started_at=AT,
        policy=PolicyClaim(role="planner", version=version, digest="a" * 64, arm="stable", weight=0.0),
        instruction=f"report {number}",
        plan=plan,
        runs=made,
        status=status,
        success=status == "succeeded",
        cost_usd=sum(run.cost_usd for run in made),
        latency_ms=360.0,
        result="done",
    )
