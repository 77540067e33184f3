"""How well did the run go that it was a part of? The reward of its parent, where that has one."""

from __future__ import annotations

from ratchet.core.contract.reward import PARENT_REWARD
from ratchet.reward_computer.components.base import TRUST_IN_MODELS, Assessment, Evidence


def parent(evidence: Evidence) -> Assessment | None:
    """The newest reward of the trajectory that it names as its parent; says nothing before that has one."""
    above = evidence.trajectory.parent_trajectory_id
    shared = [
        (given.at, given.feedback_id, float(given.value))
        for given in evidence.feedback
        if given.kind == PARENT_REWARD and given.parent_trajectory_id == above and isinstance(given.value, int | float)
    ]
    if above is None or not shared:
        return None
    _, feedback_id, score = max(shared)
    return Assessment(score, TRUST_IN_MODELS, f"reward of {above}", raw_data={"feedback_id": feedback_id})
