"""Done cheaply and fast? The value of `core.rules.cost_latency`, as 0..1; sub-tasks are successful tool calls."""

from __future__ import annotations

from ratchet.core.rules.cost_latency import BEST, MAX_SUBTASKS, WORST, scaled_cost, scaled_latency, value_of
from ratchet.reward_computer.components.base import Assessment, Evidence


def cost_latency(evidence: Evidence) -> Assessment | None:
    """Says nothing without an outcome. A cost that is not known counts as none."""
    trajectory, completion = evidence.trajectory, evidence.completion
    if completion is None:
        return None
    success = completion == 1.0
    usd = trajectory.metadata.total_cost_usd or 0.0
    seconds = (trajectory.end_timestamp - trajectory.start_timestamp).total_seconds()
    successful = sum(turn.action.type != "response" and turn.result.success for turn in trajectory.turns)
    value = value_of(success, usd, seconds, successful)
    cost, latency, subtasks = scaled_cost(usd), scaled_latency(seconds), min(MAX_SUBTASKS, successful)
    return Assessment(
        min(1.0, max(0.0, (value - WORST) / (BEST - WORST))),
        evidence.trust,
        f"success {success}, cost {cost:.2f}, latency {latency:.2f}, subtasks {subtasks} (scaled)",
        raw_data={"value": value, "cost": cost, "latency": latency, "subtasks": subtasks},
    )
