"""Metrics of workflows: how many succeed, what they cost and take, and whether plans can be run."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from ratchet.workflows.domain.results import latency_ms
from ratchet.workflows.domain.workflow import Workflow

WORKFLOWS = Counter("ratchet_workflows_total", "Workflows that ended.", ["role", "status"])
COST = Histogram(
    "ratchet_workflow_cost_usd",
    "Cost of a workflow, planning included.",
    ["role"],
    buckets=(0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10),
)
LATENCY = Histogram(
    "ratchet_workflow_seconds",
    "From the order to the last answer.",
    ["role"],
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
)
PLANS = Counter("ratchet_workflow_plans_total", "Plans, by whether they could be run.", ["role", "outcome"])
SUB_TASKS = Counter("ratchet_workflow_sub_tasks_total", "Sub-tasks that ended.", ["task_type", "status"])
BUDGET_WARNINGS = Counter(
    "ratchet_workflow_budget_warnings_total", "Workflows that spent 80 % of their budget, or more.", ["role"]
)
UNRECORDED = Counter(
    "ratchet_workflows_unrecorded_total", "Workflows that ended, and whose log no broker takes.", ["role"]
)
ACTIVE = Gauge("ratchet_workflows_active", "Workflows that this process runs.")


def count_workflow(workflow: Workflow) -> None:
    """Count one that ended."""
    WORKFLOWS.labels(workflow.role, workflow.state).inc()
    COST.labels(workflow.role).observe(workflow.cost_usd)
    LATENCY.labels(workflow.role).observe(latency_ms(workflow) / 1000)
    for part, step in zip(workflow.plan.sub_tasks if workflow.plan else (), workflow.steps, strict=True):
        SUB_TASKS.labels(part.task_type, step.state).inc()
