"""How long a rollout will take at the role's traffic: a rule of thumb, said before it begins.

A stage lasts for its shortest time, or until its canary trajectories have come. The last one lasts until a policy that
equals stable is proven: its promotion e-value grows about as exp(n w (1 - w) margin^2 / (2 v)) over n trajectories at
weight w, where v is the variance of one harm, at most 1/4 for a failure. So

    sum over stages of n w (1 - w) = 2 v ln(threshold) / margin^2

trajectories are needed, of both arms together: 599 weighted ones at the default margin and threshold, that is 2,400 at
half of the traffic. It is a rule of thumb: of simulated rollouts of an equal policy half needed 2,400 or fewer, 90 % of
them 5,750 (ADR 23). A better policy takes less, a worse one is rolled back sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.bus.message import JsonObject, Value
from ratchet.canary_deployer.domain.rules import Rules

DAY_S = 86400.0
LARGEST_VARIANCE = 0.25
FEWEST_STARTS = 5
"""Fewer starts say nothing about a role's traffic."""


class Forecast(Value, frozen=True, kw_only=True):
    """What is expected of a rollout of a policy that equals stable."""

    per_day: float
    """Trajectories of the role that start in a day."""
    stages: tuple[float, ...]
    """Days in each stage."""
    soak: float
    """Days of the soak."""

    @property
    def days(self) -> float:
        """From the first traffic to the promotion."""
        return sum(self.stages) + self.soak

    def shown(self) -> JsonObject:
        """For events, and for people."""
        return {
            "trajectories_per_day": round(self.per_day, 1),
            "expected_days": round(self.days, 2),
            "expected_days_by_stage": [round(days, 2) for days in self.stages],
        }


def forecast(starts: int, span_s: float, rules: Rules) -> Forecast | None:
    """From so many starts in `span_s` seconds; None when they are too few to say anything."""
    if starts < FEWEST_STARTS or span_s <= 0:
        return None
    return forecast_at_rate(starts / span_s, rules)


def forecast_at_rate(per_s: float, rules: Rules, first_stage: int = 0) -> Forecast:
    """With so many starts a second, from this stage on."""
    wanted = 2 * LARGEST_VARIANCE * math.log(rules.promotion_threshold) / max(rules.margin, 1e-3) ** 2
    lasting: list[float] = []
    for index, stage in enumerate(rules.stages):
        if index < first_stage:
            lasting.append(0.0)
            continue
        informative = stage.weight * (1 - stage.weight)
        seconds = max(stage.min_s, stage.min_trajectories / (stage.weight * per_s))
        if index == len(rules.stages) - 1:
            seconds = max(seconds, wanted / (informative * per_s))
        wanted = max(0.0, wanted - informative * per_s * seconds)
        lasting.append(seconds / DAY_S)
    return Forecast(per_day=per_s * DAY_S, stages=tuple(lasting), soak=rules.soak_s / DAY_S if rules.soaks else 0.0)


def takes_too_long(expected: Forecast | None, rules: Rules) -> bool:
    """Whether a person should decide instead of waiting."""
    return expected is not None and expected.days > rules.longest_days


def in_words(expected: Forecast, rules: Rules) -> str:
    """One line with the numbers."""
    stages = ", ".join(f"{days:.1f}" for days in expected.stages)
    return (
        f"at {expected.per_day:.0f} trajectories a day a policy equal to stable takes about {expected.days:.0f} days "
        f"({stages} by stage), the bound is {rules.longest_days:g}"
    )


QUANTILE = 0.99
HEAD_ROOM = 1.5
FEWEST_OUTCOMES = 100
"""Fewer outcomes say nothing about the slowest one in a hundred."""
MOST_OPEN = 36_000
"""Open trajectories that a rollout has room for (`tests/bench/bench_canary.py`): 20 a second for half an hour."""


class Horizon(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The horizon of one rollout, and where it comes from."""

    seconds: float
    basis: str
    """In words, for people."""
    outcomes: int = 0
    """How many of stable's outcomes it was measured on; 0: it is the setting."""
    quantile_s: float | None = None
    """The time within which .99 of them were known."""


def measured_horizon(took_s: Sequence[float], expected: Forecast | None, rules: Rules) -> Horizon:
    """The horizon from the times that stable's outcomes took; the setting's where they are too few."""
    if len(took_s) < FEWEST_OUTCOMES:
        count = f"{len(took_s)} of {FEWEST_OUTCOMES} outcomes of stable"
        return horizon_by_setting(f"{count} are known from before", rules)
    slow_s = quantile(took_s, QUANTILE)
    seconds = min(max(HEAD_ROOM * slow_s, rules.horizon_min_s), _longest_s(expected, rules))
    shown = f"{QUANTILE:.0%} of {len(took_s)} outcomes of stable were known within {slow_s:.0f} s"
    return Horizon(seconds=seconds, basis=shown, outcomes=len(took_s), quantile_s=slow_s)


def horizon_by_setting(why: str, rules: Rules) -> Horizon:
    """The horizon of the settings, and why no other is known."""
    return Horizon(seconds=rules.horizon_s, basis=f"the setting: {why}")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _longest_s(expected: Forecast | None, rules: Rules) -> float:
    """The upper bound; with much traffic the one that leaves room, but never less than the setting."""
    if expected is None:
        return rules.horizon_max_s
    room_s = MOST_OPEN / (expected.per_day / DAY_S)
    return min(rules.horizon_max_s, max(room_s, rules.horizon_s))
