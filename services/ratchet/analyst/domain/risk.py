"""How risky a plan is: by what it touches, and by how many it reaches. Pure."""

from __future__ import annotations

from ratchet.core.contract.learning import Pattern, PlanChange

FEW, MANY = 0.1, 0.4
"""Shares of a role's trajectories."""
WORDS = frozenset({"term", "document"})
"""Attributes whose values users write: with them their words stand in what a policy reads."""


def risk_of(change: PlanChange, pattern: Pattern) -> str:
    """`low`, `medium` or `high`.

    Low is what touches no traffic (a note, drafts of tasks), and instructions about few trajectories in which no word
    of a user stands. A reward weight changes what everything learns towards, and is high.
    """
    if change.kind in ("note", "held_out_tasks"):
        return "low"
    if change.kind == "reward_weight" or pattern.share > MANY or not pattern.triggers:
        return "high"
    if change.kind == "training" or pattern.share > FEW:
        return "medium"
    return "medium" if any(trigger.attribute in WORDS for trigger in pattern.triggers) else "low"
