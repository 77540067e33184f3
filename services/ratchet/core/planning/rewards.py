"""What planners are trained and judged by: 10 x success - .1 x cost - .01 x latency + .1 x successful sub-tasks.

Cost and latency are scaled and bounded as the reward component `cost_latency` has them, so that success beats failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract.workflows import SubTaskRun, WorkflowExecution
from ratchet.core.rules.cost_latency import value_of

JUDGED = frozenset({"succeeded", "failed"})
"""States of a sub-task whose worker was asked."""


def is_judged(run: SubTaskRun) -> bool:
    """Whether a sub-task says something about the choice of its worker: one that was asked, or one that was drawn and
    then skipped, because its call did not fit into the budget. To leave the latter out would make dear workers look
    good. What was skipped without a draw or cancelled says nothing.
    """
    return run.status in JUDGED or (run.status == "skipped" and run.worker is not None)


def workflow_reward(row: WorkflowExecution) -> float:
    """Of a whole execution, by the time that it took."""
    succeeded = sum(run.status == "succeeded" for run in row.runs)
    return value_of(row.success, row.cost_usd, row.latency_ms / 1000.0, succeeded)


def decision_reward(success: bool, cost_usd: float, latency_ms: float) -> float:
    """Of a sub-task by itself, as if it were a workflow: 10.1 for a success that is free and at once."""
    return value_of(success, cost_usd, latency_ms / 1000.0, int(success))


def run_reward(run: SubTaskRun) -> float:
    """`decision_reward` of a sub-task that was judged."""
    return decision_reward(run.status == "succeeded", run.cost_usd, run.latency_ms)


def step_rewards(judged: Sequence[SubTaskRun], success: bool) -> list[float]:
    """The reward of a workflow over the sub-tasks whose workers were asked, in order; the last gets the success.

    Cost and latency are those of each sub-task: where sub-tasks ran side by side, their latencies add up to more than
    the workflow took, because a worker answers for its own alone.
    """
    rewards = [run_reward(run) - 10.0 * (run.status == "succeeded") for run in judged]
    if rewards:
        rewards[-1] += 10.0 * success
    return rewards
