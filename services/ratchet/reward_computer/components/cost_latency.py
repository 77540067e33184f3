"""Done cheaply and fast? 10 x success - .1 x cost - .01 x latency + .1 x subtasks, mapped to 0..1.

The terms are scaled and bounded so that success always beats failure: cost in tenths of a US dollar (at most 10),
latency in units of 6 s (at most 100), successful tool calls (at most 10). A failure is then worth -2 .. 1, a success
8 .. 11.
"""

from __future__ import annotations

from ratchet.reward_computer.components.base import Assessment, Evidence

COST_UNIT_USD, MAX_COST = 0.1, 10.0
LATENCY_UNIT_S, MAX_LATENCY = 6.0, 100.0
MAX_SUBTASKS = 10
WORST, BEST = -2.0, 11.0


def cost_latency(evidence: Evidence) -> Assessment | None:
    """Says nothing without an outcome. A cost that is not known counts as none."""
    trajectory, completion = evidence.trajectory, evidence.completion
    if completion is None:
        return None
    success = completion == 1.0
    cost = min(MAX_COST, (trajectory.metadata.total_cost_usd or 0.0) / COST_UNIT_USD)
    seconds = (trajectory.end_timestamp - trajectory.start_timestamp).total_seconds()
    latency = min(MAX_LATENCY, max(0.0, seconds) / LATENCY_UNIT_S)
    successful = sum(turn.action.type != "response" and turn.result.success for turn in trajectory.turns)
    subtasks = min(MAX_SUBTASKS, successful)
    value = 10.0 * success - 0.1 * cost - 0.01 * latency + 0.1 * subtasks
    return Assessment(
        min(1.0, max(0.0, (value - WORST) / (BEST - WORST))),
        evidence.trust,
        f"success {success}, cost {cost:.2f}, latency {latency:.2f}, subtasks {subtasks} (scaled)",
        raw_data={"value": value, "cost": cost, "latency": latency, "subtasks": subtasks},
    )
