"""Workflows of the console's scene: one that runs, one that succeeded, and one whose branch failed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ratchet.core.contract.http.workflows import WorkflowIn, WorkflowOut, WorkflowsOut
from tests.support.executions import run_of
from tests.support.fake_workflows import ID, workflow

RUNNING_ID = "019ab3f2-71c4-7d3e-9a53-7f6f0c3c2e12"
PARTIAL_ID = "019ab3f2-71c4-7d3e-9a53-7f6f0c3c2e13"


def workflow_answers(now: datetime) -> dict[str, Any]:
    """By `METHOD path`."""
    every = workflows_shown(now)
    listed = WorkflowsOut(workflows=[replace(one, plan=None, sub_tasks=[], result=None) for one in every])
    shown = {f"GET /workflows/v1/workflows/{one.workflow_id}": one for one in every}
    return {"GET /workflows/v1/workflows": listed, **shown}


def workflows_shown(now: datetime) -> list[WorkflowOut]:
    """The newest first."""
    asked = WorkflowIn(instruction="Summarise the two reports, and say which year was better.", budget_usd=0.2)
    begun = now - timedelta(seconds=9)
    running, done, partial = (
        replace(
            workflow(replace(asked, workflow_id=name), state),
            created_at=begun,
            ended_at=now if state != "running" else None,
        )
        for name, state in ((RUNNING_ID, "running"), (ID, "succeeded"), (PARTIAL_ID, "partial"))
    )
    failed = replace(run_of("quick", status="failed"), error="the worker answered nothing", retries=2)
    stopped = replace(failed, status="skipped", worker=None, propensity=None, error="sub-task 2 failed")
    first, second, third = partial.sub_tasks
    partial_tasks = [
        first,
        replace(second, state="failed", worker="quick", run=failed, output=None),
        replace(third, state="skipped", worker=None, run=stopped, output=None),
    ]
    warned = replace(partial, warning="80 % of the budget is spent", cost_usd=0.17, sub_tasks=partial_tasks)
    return [running, done, warned]
