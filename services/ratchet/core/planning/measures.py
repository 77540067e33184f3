"""What planners' executions were like: success, cost, latency, and whether their plans are graphs that can run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.errors import Rejected
from ratchet.core.planning.dataset import policy_of
from ratchet.core.planning.plans import check_plan


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the executions of one policy, or of one baseline."""

    policy: str
    """Such as `planner@3`; with `, llm` where the language model planned in its place."""
    executions: int
    success_rate: float
    cost_usd: float
    """Mean."""
    latency_ms: float
    """Mean."""
    cost_per_success_usd: float | None
    """All that was spent, by what succeeded; null without a success."""
    validity: float
    """Share with a plan that can run: known types, and each sub-task after those that it depends on."""


def measured(executions: Iterable[WorkflowExecution]) -> list[Measures]:
    """Those of each policy, apart for plans of its model and of the language model, by name."""
    groups: dict[str, list[WorkflowExecution]] = defaultdict(list)
    for execution in executions:
        by_llm = execution.plan is not None and execution.plan.made_by == "llm"
        groups[f"{policy_of(execution)}{', llm' if by_llm else ''}"].append(execution)
    return [measures_of(policy, group) for policy, group in sorted(groups.items())]


def measures_of(policy: str, group: Sequence[WorkflowExecution]) -> Measures:
    """Those of executions that belong together; there is at least one."""
    succeeded = sum(execution.success for execution in group)
    spent = sum(execution.cost_usd for execution in group)
    return Measures(
        policy=policy,
        executions=len(group),
        success_rate=succeeded / len(group),
        cost_usd=spent / len(group),
        latency_ms=sum(execution.latency_ms for execution in group) / len(group),
        cost_per_success_usd=spent / succeeded if succeeded else None,
        validity=sum(is_valid(execution) for execution in group) / len(group),
    )


def is_valid(execution: WorkflowExecution) -> bool:
    """Whether its plan can run."""
    if execution.plan is None:
        return False
    try:
        check_plan(execution.plan)
    except Rejected:
        return False
    return True
