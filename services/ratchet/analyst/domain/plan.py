"""The life of a plan: what may follow what, when another one is drafted, and what it came to. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ratchet.core.contract.learning import (
    PLAN_STATES,
    AdaptationPlan,
    Approval,
    ArmEffect,
    Effect,
    Pattern,
    PlanStep,
)
from ratchet.core.errors import WrongState

DRAFT, APPROVED, EXECUTING = "draft", "approved", "executing"
VALIDATED, ROLLED_BACK, REJECTED = "validated", "rolled_back", "rejected"
ENDS = frozenset(state for state, followers in PLAN_STATES.items() if not followers)
ANALYST, POLICY = "analyst", "policy"
"""Who acts where no person does: the service, and the setting that lets low-risk plans of a role run by themselves."""
SUPERSEDED = "is void: "
"""How the reason begins for which the analyst rejects a plan that nothing is wrong with: it is drafted anew."""
MOST_TRIES = 4
"""Plans of one pattern, void ones aside: one that four changes did not end is a matter for people."""
AGAIN_AFTER = timedelta(days=1)
"""After a plan that deployer or coordinator refused: a gate may have met a fault that has passed by then."""
LOWER_IS_BETTER = frozenset({"failure", "cost_usd", "latency_ms", "tokens", "calls"})
HIGHER_IS_BETTER = frozenset({"reward", "feedback"})
ESCALATION = {"bundle": "training", "training": "note"}
"""What is tried after a change of that kind that did not end the pattern."""


def stepped(
    plan: AdaptationPlan, state: str, at: datetime, by: str, reason: str | None = None, **members: Any
) -> AdaptationPlan:
    """The plan in its next state; `members`: others that change with it. Raises `WrongState`."""
    if state not in PLAN_STATES[plan.state]:
        allowed = ", ".join(sorted(PLAN_STATES[plan.state])) or "none: it has ended"
        raise WrongState(f"plan {plan.plan_id} is {plan.state}, and cannot become {state}; what may follow: {allowed}")
    step = PlanStep(state=state, at=at, by=by, reason=reason)
    return replace(plan, state=state, history=(*plan.history, step), **members)


def approved(plan: AdaptationPlan, at: datetime, by: str, reason: str | None = None) -> AdaptationPlan:
    """The plan, which may be carried out from now on. Raises `WrongState`."""
    approvals = (*plan.approvals, Approval(by=by, at=at))
    return stepped(plan, APPROVED, at, by, reason, approvals=approvals)


def plan_id_of(pattern: Pattern, tries: int) -> str:
    """Id of a pattern's plan after so many others: two analysts that draft it draft the same one. Of a pattern that
    opened again, once its plans were forgotten, it is another one."""
    named = f"plan/{pattern.pattern_id}/{pattern.opened_at.isoformat()}/{tries}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def next_kind(pattern: Pattern, plans: Sequence[AdaptationPlan]) -> str | None:
    """What the next plan of an open pattern changes, after those that it had, the oldest first; None: none is drafted.

    None is while one is under way, after a person has rejected one, and before the pattern was seen again after the
    last one had ended: a day after, where it was refused.
    """
    if pattern.state != "open" or sum(not _is_void(plan) for plan in plans) >= MOST_TRIES:
        return None
    if not plans:
        return pattern.action
    last = plans[-1]
    end = last.history[-1]
    if last.state not in ENDS or pattern.seen_at <= end.at:
        return None
    if last.state != REJECTED:
        return ESCALATION.get(last.change.kind)
    is_due = _is_void(last) or (end.by == ANALYST and pattern.seen_at - end.at >= AGAIN_AFTER)
    return last.change.kind if is_due else None


def _is_void(plan: AdaptationPlan) -> bool:
    """Whether nothing was wrong with it: it was never tried."""
    end = plan.history[-1]
    return plan.state == REJECTED and end.by == ANALYST and (end.reason or "").startswith(SUPERSEDED)


def changes_policy(plan: AdaptationPlan) -> bool:
    """Whether a candidate comes of it. Of those one at a time is carried out in a role: two would be made from the
    same policy, and the later would take back what the earlier changed."""
    return plan.change.bundle is not None or plan.change.training is not None


def gain_of(effect: ArmEffect, measure: str) -> tuple[float, float, float] | None:
    """By how much the change made the measure better, and the interval of that; None where no direction is better."""
    if measure in LOWER_IS_BETTER:
        return -effect.difference, -effect.high, -effect.low
    if measure in HIGHER_IS_BETTER:
        return effect.difference, effect.low, effect.high
    return None


def has_helped(plan: AdaptationPlan) -> bool | None:
    """Whether the arms show that it helped (True) or harmed (False); None: neither is shown."""
    gain = gain_of(plan.effect, plan.expected.measure) if plan.effect is not None else None
    if gain is None:
        return None
    _, low, high = gain
    return True if low > 0 else False if high < 0 else None


def has_worked(plan: AdaptationPlan) -> bool | None:
    """Whether a plan that has ended counts as a success; None: it was not tried, or nothing is known."""
    if plan.state == ROLLED_BACK:
        return False
    return has_helped(plan) if plan.state == VALIDATED else None


def verdict_of(effect: ArmEffect, expected: Effect) -> str:
    """What the arms say of a change, beside what it promised."""
    gain = gain_of(effect, expected.measure)
    assert gain is not None  # noqa: S101 - only measures with a direction are compared
    by, low, high = gain
    numbers = (
        f"{expected.measure} {effect.difference:+.3g} [{effect.low:+.3g}, {effect.high:+.3g}] against stable, among "
        f"{effect.canary} canary and {effect.stable} stable trajectories that match; promised at most"
        f" {expected.value:+.3g}"
    )
    if low > 0:
        kept = "as promised" if by >= abs(expected.value) / 2 else "less than promised"
        return f"It helped, {kept}: {numbers}."
    if high < 0:
        return f"It harmed: {numbers}."
    if high < abs(expected.value) / 2:
        return f"It did not help as promised: {numbers}."
    return f"Whether it helped is not known from so few: {numbers}."
