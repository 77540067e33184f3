"""Was it safe? As labelled by the agent's host (`labels.scores.safety`)."""

from __future__ import annotations

from ratchet.reward_computer.components.base import Assessment, Evidence, labelled


def safety(evidence: Evidence) -> Assessment | None:
    """Says nothing without a label."""
    return labelled(evidence, "safety")
