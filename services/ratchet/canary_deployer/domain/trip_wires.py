"""Faults that end a rollout outside the statistics: error rate, negative feedback, safety.

Load, checksum and broken output are wires too, but they are found before traffic: see the gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.canary_deployer.domain.rules import TripLimits
from ratchet.canary_deployer.domain.statistics import Statistics

ERRORS, FEEDBACK, SAFETY = "error_rate", "negative_feedback", "safety"


@dataclass(frozen=True, slots=True)
class Tripped:
    """A wire that is touched at this look, and why."""

    wire: str
    reason: str


@dataclass(frozen=True, slots=True)
class Looks:
    """How many looks in a row each wire was touched, and what the last look saw."""

    touched: Mapping[str, int]
    calls: int = 0
    rated: int = 0


NO_LOOKS = Looks({})


def look(before: Looks, statistics: Statistics, limits: TripLimits) -> tuple[Looks, Tripped | None]:
    """Count the wires that are touched now; the one that has been touched long enough, if any.

    A look without new canary calls or ratings is none: it changes nothing but can still see a safety violation.
    """
    now = [tripped for tripped in (_errors(statistics, limits), _feedback(statistics, limits)) if tripped]
    violated = _safety(statistics)
    fresh = Looks(before.touched, statistics.canary.calls, statistics.canary.rated)
    if violated is not None or fresh == before:
        return fresh, violated
    touched = {tripped.wire: before.touched.get(tripped.wire, 0) + 1 for tripped in now}
    due = [tripped for tripped in now if touched[tripped.wire] >= limits.sustained_checks]
    return Looks(touched, fresh.calls, fresh.rated), due[0] if due else None


def _errors(statistics: Statistics, limits: TripLimits) -> Tripped | None:
    """More canary calls fail than allowed, and more than on the stable arm: an outage of both is not the policy's."""
    canary, stable = statistics.canary, statistics.stable
    rate = canary.error_rate
    if rate is None or canary.calls < limits.error_min_calls or rate <= limits.error_rate:
        return None
    if rate <= 2 * (stable.error_rate or 0.0):
        return None
    return Tripped(ERRORS, f"error rate {rate:.1%} of {canary.calls} canary calls is over {limits.error_rate:.0%}")


def _feedback(statistics: Statistics, limits: TripLimits) -> Tripped | None:
    canary, stable = statistics.canary, statistics.stable
    if min(canary.rated, stable.rated) < limits.feedback_min_ratings:
        return None
    # A stable policy without complaints counts as having one, else the first complaint would be infinitely worse.
    usual = max(stable.negative, 1) / stable.rated
    share = canary.negative / canary.rated
    if share <= limits.feedback_ratio * usual:
        return None
    return Tripped(
        FEEDBACK, f"negative feedback {share:.0%} against {usual:.0%} is over {limits.feedback_ratio:g} times"
    )


def _safety(statistics: Statistics) -> Tripped | None:
    violations = statistics.canary.violations
    return Tripped(SAFETY, f"{violations} canary trajectories violated safety") if violations else None
