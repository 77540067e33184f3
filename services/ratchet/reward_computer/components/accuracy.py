"""Was it right? As labelled by the agent's host (`labels.scores.accuracy`)."""

from __future__ import annotations

from ratchet.reward_computer.components.base import Assessment, Evidence, labelled


def accuracy(evidence: Evidence) -> Assessment | None:
    """Says nothing without a label."""
    return labelled(evidence, "accuracy")
