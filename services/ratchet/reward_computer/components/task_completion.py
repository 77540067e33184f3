"""Was the task done? 1 for success, 0.5 + 0.5 x completion for partial success, else 0."""

from __future__ import annotations

from ratchet.reward_computer.components.base import Assessment, Evidence

_SOURCES = {"human": "human", "tests": "test_results", "benchmark": "benchmark"}
"""Who verified -> source; anything else is automated."""


def task_completion(evidence: Evidence) -> Assessment | None:
    """Says nothing without an outcome: a missing report is no failure of the agent."""
    outcome, score = evidence.trajectory.outcome, evidence.completion
    if outcome is None or score is None:
        return None
    checked = f"verified by {outcome.verified_by}" if outcome.verified_by else "the agent's own claim"
    raw = {"status": outcome.status, "completion_percentage": outcome.completion_percentage}
    return Assessment(
        score,
        evidence.trust,
        f"outcome {outcome.status}, {checked}",
        _SOURCES.get(outcome.verified_by or "", "automated"),
        {name: value for name, value in raw.items() if value is not None},
    )
