"""Metrics of self-learning: what was looked at, what goes wrong, and what became of plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from prometheus_client import Counter, Gauge

from ratchet.analyst.domain.plan import gain_of, has_worked
from ratchet.core.contract.learning import AdaptationPlan, Pattern

LEADING = Gauge("ratchet_analyst_leading", "1 while this analyst leads, 0 while it is a standby.")
LOOKED = Gauge(
    "ratchet_analyst_looked_timestamp_seconds", "When all roles were looked at last; 0 on one that does not lead."
)
EPISODES = Counter("ratchet_analyst_episodes_total", "Trajectories that runs by the clock looked at.", ["role"])
HYPOTHESES = Counter("ratchet_analyst_hypotheses_total", "Hypotheses that were tested.", ["role"])
PATTERNS = Gauge("ratchet_analyst_patterns", "Patterns by state.", ["role", "state"])
PLANS = Gauge("ratchet_analyst_plans", "Plans by state.", ["role", "state"])
PLAN_SUCCESS = Gauge(
    "ratchet_analyst_plan_success_ratio", "Share of the plans whose effect the arms showed, which helped.", ["role"]
)
IMPROVEMENT = Gauge(
    "ratchet_analyst_plan_improvement",
    "Mean difference between the arms that measured plans made, for the better above 0, in the measure's unit.",
    ["role", "measure"],
)
STANDING = (PATTERNS, PLANS, PLAN_SUCCESS, IMPROVEMENT)
"""Shown by the one that leads alone."""


def stop_showing() -> None:
    """Show no patterns and plans: the one that leads does."""
    for gauge in STANDING:
        gauge.clear()


def count(patterns: Iterable[Pattern], plans: Iterable[AdaptationPlan]) -> None:
    """Show what there is now."""
    stop_showing()
    for pattern in patterns:
        PATTERNS.labels(pattern.role, pattern.state).inc()
    ended: defaultdict[str, list[bool]] = defaultdict(list)
    effects: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for plan in plans:
        PLANS.labels(plan.role, plan.state).inc()
        if (worked := has_worked(plan)) is not None:
            ended[plan.role].append(worked)
        gain = gain_of(plan.effect, plan.expected.measure) if plan.effect is not None else None
        if gain is not None:
            effects[plan.role, plan.expected.measure].append(gain[0])
    for role, outcomes in ended.items():
        PLAN_SUCCESS.labels(role).set(fmean(outcomes))
    for key, differences in effects.items():
        IMPROVEMENT.labels(*key).set(fmean(differences))
