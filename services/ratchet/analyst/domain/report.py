"""The weekly report of what a role learned: what changed, what it earned, and what was taken back. Pure.

Statements and reasons hold words of people: redacted, bounded and on one line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ratchet.analyst.domain.plan import ENDS, REJECTED, ROLLED_BACK, VALIDATED, gain_of, has_worked
from ratchet.analyst.mining.texts import sentence_of
from ratchet.bus.message import JsonObject
from ratchet.core.contract.learning import AdaptationPlan, Pattern
from ratchet.core.rules.reports import MOST_LISTED, Report, Section

WEEK = timedelta(days=7)


def weekly_report(role: str, patterns: Sequence[Pattern], plans: Sequence[AdaptationPlan], until: datetime) -> Report:
    """Of the seven days before `until`."""
    since = until - WEEK
    opened = [each for each in patterns if since < each.opened_at <= until]
    over = [each for each in patterns if since < (each.closed_at or since) <= until]
    closed, dismissed = ([each for each in over if each.state == state] for state in ("closed", "dismissed"))
    ended = [plan for plan in plans if plan.state in ENDS and since < plan.history[-1].at <= until]
    kept, taken_back, rejected = (
        [plan for plan in ended if plan.state == state] for state in (VALIDATED, ROLLED_BACK, REJECTED)
    )
    kept = [plan for plan in kept if plan.policy is not None]
    were_open = (each for each in patterns if each.opened_at <= until < (each.closed_at or until + WEEK))
    still_open = sorted(were_open, key=lambda each: -each.reward_cost)
    worked = [has_worked(plan) for plan in ended]
    sections = (
        Section("What changed", _of_plans(kept), "Nothing was changed."),
        Section("What it earned", _earned(kept), "No effect was measured."),
        Section("What was taken back", _of_plans(taken_back), "Nothing was taken back."),
        Section("What was not tried", _of_plans(rejected), "Nothing was rejected."),
        Section("Patterns that opened", [sentence_of(each.statement) for each in opened[:MOST_LISTED]], "None opened."),
        Section("Patterns that closed", [_closing(each) for each in closed[:MOST_LISTED]], "None closed."),
        Section("Patterns that people dismissed", [_dismissal(each) for each in dismissed[:MOST_LISTED]], "None."),
        Section(
            "Open patterns, the dearest first",
            [sentence_of(each.statement) for each in still_open[:MOST_LISTED]],
            "None.",
        ),
    )
    figures: JsonObject = {
        "patterns_open": len(still_open),
        "patterns_opened": len(opened),
        "patterns_closed": len(closed),
        "plans_validated": len(kept),
        "plans_rolled_back": len(taken_back),
        "plans_rejected": len(rejected),
        "plans_that_worked": sum(each is True for each in worked),
        "plans_that_did_not": sum(each is False for each in worked),
    }
    title = f"What {role} learned, {since:%Y-%m-%d} to {until:%Y-%m-%d}"
    return Report(title, since, until, sections, figures)


def _of_plans(plans: Sequence[AdaptationPlan]) -> list[str]:
    return [
        f"{sentence_of(plan.change.summary)} -> {sentence_of(plan.verdict or plan.history[-1].reason or plan.state)}"
        for plan in plans[:MOST_LISTED]
    ]


def _earned(plans: Sequence[AdaptationPlan]) -> list[str]:
    lines: list[str] = []
    for plan in plans:
        gain = gain_of(plan.effect, plan.expected.measure) if plan.effect is not None else None
        if gain is not None:
            by, low, high = gain
            lines.append(
                f"{plan.policy or plan.plan_id}: {plan.expected.measure} better by {by:.3g} a trajectory that matches,"
                f" between {low:.3g} and {high:.3g}"
            )
    return lines[:MOST_LISTED]


def _closing(pattern: Pattern) -> str:
    by = f"; it ended with {sentence_of(pattern.closed_by)}" if pattern.closed_by else ""
    return f"{sentence_of(pattern.statement)}{by}"


def _dismissal(pattern: Pattern) -> str:
    why = f": {sentence_of(pattern.reason)}" if pattern.reason else ""
    return f"{sentence_of(pattern.statement)}; by {sentence_of(pattern.closed_by or 'somebody')}{why}"
