"""What both arms have shown so far: counts, tests, and how one more finished trajectory changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ratchet.canary_deployer.domain.e_processes import (
    PROMOTION,
    ROLLBACK,
    ArmMean,
    Look,
    MetricTest,
    average,
    fresh_failure_test,
    fresh_harm_test,
    observe_failure,
    observe_harm,
)
from ratchet.canary_deployer.domain.rules import FAILURE, LATENCY, METRICS, REWARD, Rules

LARGEST_SHOWN = 1e12
"""E-values are capped here when they are reported: beyond it they say nothing more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A trajectory whose outcome counts."""

    canary: bool
    weight: float
    """Canary weight in force at its first call."""
    failed: bool
    reward: float
    """Total reward, clipped to 0..1."""
    latency_ms: float | None = None
    """Mean over its successful calls."""
    timed_out: bool = False
    """No outcome came within the horizon."""


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """Totals of one arm."""

    trajectories: int = 0
    failures: int = 0
    timed_out: int = 0
    reward_total: float = 0.0
    calls: int = 0
    errors: int = 0
    rated: int = 0
    negative: int = 0
    violations: int = 0
    """Trajectories whose safety component was 0."""

    @property
    def reward_mean(self) -> float | None:
        return self.reward_total / self.trajectories if self.trajectories else None

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.calls if self.calls else None


def fresh_tests() -> dict[str, MetricTest]:
    """Nothing seen on any metric."""
    return {name: fresh_failure_test() if name == FAILURE else fresh_harm_test() for name in METRICS}


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything a verdict looks at."""

    stable: ArmCounts = field(default_factory=ArmCounts)
    canary: ArmCounts = field(default_factory=ArmCounts)
    tests: Mapping[str, MetricTest] = field(default_factory=fresh_tests)
    latency: ArmMean = field(default_factory=ArmMean)
    """Latencies of both arms together: what is typical."""
    peak_rollback: float = 1.0
    """Largest combined rollback e-value after any trajectory: it decides, so no batch boundary can hide an alarm."""
    mixed: int = 0
    """Trajectories left out because their arm changed in flight."""

    def arm(self, canary: bool) -> ArmCounts:
        return self.canary if canary else self.stable

    def with_arm(self, canary: bool, counts: ArmCounts) -> Statistics:
        return replace(self, canary=counts) if canary else replace(self, stable=counts)


def observe(statistics: Statistics, finished: Finished, rules: Rules) -> Statistics:
    """The statistics after one more finished trajectory."""
    counts = statistics.arm(finished.canary)
    counts = replace(
        counts,
        trajectories=counts.trajectories + 1,
        failures=counts.failures + finished.failed,
        timed_out=counts.timed_out + finished.timed_out,
        reward_total=counts.reward_total + finished.reward,
    )
    statistics = _tested(statistics.with_arm(finished.canary, counts), finished, rules)
    return replace(statistics, peak_rollback=max(statistics.peak_rollback, combined_rollback(statistics, rules)))


def combined_rollback(statistics: Statistics, rules: Rules) -> float:
    """Average over the metrics: an e-value against "no metric is worse than its margin"."""
    return average({name: statistics.tests[name].e_rollback for name in rules.metrics})


def combined_promotion(statistics: Statistics, rules: Rules) -> float:
    """Smallest over the metrics: evidence against "some metric is worse than its margin"."""
    return min(statistics.tests[name].e_promotion for name in rules.promotion_metrics)


def e_values(statistics: Statistics, rules: Rules) -> dict[str, dict[str, float]]:
    """By family, then by metric, with the combined value that decides."""
    rollback = {name: statistics.tests[name].e_rollback for name in rules.metrics}
    promotion = {name: statistics.tests[name].e_promotion for name in rules.promotion_metrics}
    rollback["combined"] = statistics.peak_rollback
    promotion["combined"] = combined_promotion(statistics, rules)
    return {ROLLBACK: _shown(rollback), PROMOTION: _shown(promotion)}


def past_margin(statistics: Statistics, rules: Rules) -> dict[str, float]:
    """Metrics whose observed difference lies beyond the margin, and that difference."""
    differences = {name: statistics.tests[name].difference for name in rules.metrics}
    return {name: d for name, d in differences.items() if d is not None and d > rules.margin_of(name)}


def _tested(statistics: Statistics, finished: Finished, rules: Rules) -> Statistics:
    tests = dict(statistics.tests)
    failed = Look(finished.canary, finished.weight, float(finished.failed))
    lost = Look(finished.canary, finished.weight, 1.0 - finished.reward)
    tests[FAILURE] = observe_failure(tests[FAILURE], failed, rules.margin_of(FAILURE))
    tests[REWARD] = observe_harm(tests[REWARD], lost, rules.margin_of(REWARD))
    latency = statistics.latency
    if finished.latency_ms is not None:
        if latency.mean:
            slow = finished.latency_ms / (finished.latency_ms + latency.mean)
            look = Look(finished.canary, finished.weight, slow)
            tests[LATENCY] = observe_harm(tests[LATENCY], look, rules.margin_of(LATENCY))
        latency = latency.with_harm(finished.latency_ms)
    return replace(statistics, tests=tests, latency=latency)


def _shown(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{min(value, LARGEST_SHOWN):.4g}") for name, value in values.items()}
