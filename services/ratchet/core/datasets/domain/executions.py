"""Executions of workflows as rows of a snapshot, and back: both say the same."""

from __future__ import annotations

from ratchet.core.contract.snapshot import ExecutionRow
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.workflows import Plan, WorkflowExecution

WORKFLOWS = "workflows"
"""The source of these rows."""


def execution_row(execution: WorkflowExecution, reward: float | None) -> ExecutionRow:
    """The row of an execution. `reward`: of its parent trajectory, where that has one."""
    plan = execution.plan
    return ExecutionRow(
        workflow_id=execution.workflow_id,
        started_at=execution.started_at,
        ended_at=execution.timestamp,
        instruction=execution.instruction,
        sub_tasks=list(plan.sub_tasks) if plan else [],
        runs=list(execution.runs),
        made_by=plan.made_by if plan else None,
        confidence=plan.confidence if plan else None,
        status=execution.status,
        success=execution.success,
        cost_usd=execution.cost_usd,
        latency_ms=execution.latency_ms,
        reward=reward,
        policy_version=execution.policy.version,
        policy_digest=execution.policy.digest,
        arm=execution.policy.arm,
        weight=execution.policy.weight,
    )


def execution_of(row: ExecutionRow, role: str) -> WorkflowExecution:
    """What a planner learns from in a row; without what came of it as text, its budget, and whose it was."""
    plan = None
    if row.made_by is not None:
        plan = Plan(sub_tasks=tuple(row.sub_tasks), made_by=row.made_by, confidence=row.confidence or 0.0)
    return WorkflowExecution(
        workflow_id=row.workflow_id,
        timestamp=row.ended_at,
        started_at=row.started_at,
        role=role,
        policy=PolicyClaim(
            role=role, version=row.policy_version, digest=row.policy_digest, arm=row.arm, weight=row.weight
        ),
        instruction=row.instruction,
        plan=plan,
        runs=tuple(row.runs),
        status=row.status,
        success=row.success,
        cost_usd=row.cost_usd,
        latency_ms=row.latency_ms,
    )
