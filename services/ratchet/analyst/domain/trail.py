"""Plans and reports as steps of the trail of self-learning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from ratchet.analyst.mining.texts import sentence_of
from ratchet.bus.message import JsonObject
from ratchet.core.contract.learning import AdaptationPlan, LearningEvent
from ratchet.core.rules.reports import Report

PHASE_OF: Mapping[str, str] = {
    "draft": "adaptation",
    "approved": "adaptation",
    "rejected": "adaptation",
    "executing": "validation",
    "rolled_back": "validation",
    "validated": "deployment",
}
"""State of a plan -> phase of self-learning in which it enters it: gates and canary validate it."""


def step_event(plan: AdaptationPlan, number: int) -> LearningEvent:
    """The step of that number in a plan's history."""
    step = plan.history[number]
    is_last = number == len(plan.history) - 1
    facts: JsonObject = {"by": step.by, "risk": plan.risk, "change": plan.change.kind}
    if is_last:
        facts |= {name: value for name in ("policy", "job_id", "rollout_id") if (value := getattr(plan, name))}
        if plan.effect is not None:
            facts |= {"measure": plan.expected.measure, "difference": plan.effect.difference}
            facts |= {"low": plan.effect.low, "high": plan.effect.high}
    summary = step.reason or (plan.verdict if is_last else None) or plan.change.summary
    return LearningEvent(
        at=step.at,
        phase=PHASE_OF.get(step.state, "adaptation"),
        what=f"plan_{step.state}",
        summary=sentence_of(summary),
        key=f"{plan.plan_id}.{number}",
        role=plan.role,
        pattern_id=plan.pattern_id,
        plan_id=plan.plan_id,
        facts=facts,
    )


def week_before(now: datetime) -> tuple[str, datetime]:
    """The last week that is over, such as `2026-W48`, and its end: Monday, 00:00 UTC."""
    end = (now - timedelta(days=now.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    year, week, _ = (end - timedelta(days=1)).isocalendar()
    return f"{year}-W{week:02}", end


def report_event(report: Report, role: str, week: str) -> LearningEvent:
    """A week's report."""
    counts = report.figures
    return LearningEvent(
        at=report.until,
        phase="monitoring",
        what="weekly_report",
        summary=f"{week}: {counts['plans_validated']} plans kept, {counts['plans_rolled_back']} taken back,"
        f" {counts['patterns_opened']} patterns opened, {counts['patterns_closed']} closed",
        key=week,
        role=role,
        facts={**counts, "markdown": report.markdown()},
    )
