"""How risky a plan is: by what it touches, and by how many it reaches. Pure."""

from __future__ import annotations

from ratchet.core.contract.learning import Pattern, PlanChange

FEW, MANY = 0.1, 0.4
"""Shares of a role's trajectories."""
OWN = frozenset({"language", "length"})
"""Attributes that are known before and whose values the analyst makes: of any other one, a word of a user, an agent or
a tool stands in what a policy reads."""


def risk_of(change: PlanChange, pattern: Pattern) -> str:
    """`low`, `medium` or `high`.

    Low is what touches no traffic (a note, drafts of tasks), and instructions that begin with a condition which holds
    of few trajectories, without a word of a user or an agent: no values, and no names of tools. Every call reads them
    all the same. A reward weight changes what everything learns towards, and is high.
    """
    if change.kind in ("note", "held_out_tasks"):
        return "low"
    if change.kind == "reward_weight" or pattern.share > MANY or not pattern.triggers:
        return "high"
    if change.kind == "training" or pattern.share > FEW:
        return "medium"
    instructions = change.bundle.instructions if change.bundle is not None else None
    names_tools = instructions is None or not instructions.text.endswith(pattern.advice)
    return "medium" if names_tools or any(trigger.attribute not in OWN for trigger in pattern.triggers) else "low"
