"""What history says before a rollout begins: how long it will take, how long a trajectory may take, and may cost.

**The forecast** is a rule of thumb. A stage lasts for its shortest time, or until its canary trajectories have come.
The last one lasts until a policy that equals stable is proven: its promotion e-value grows about as
exp(n w (1 - w) margin^2 / (2 v)) over n trajectories at weight w, where v is the variance of one harm, at most 1/4 for
a failure. So

    sum over stages of n w (1 - w) = 2 v ln(threshold) / margin^2

subjects are needed, which are trajectories where each is its own subject (`subjects.py`): else the threshold is that of
their first trajectories, and they come at the rate of new subjects in the role's latest starts, which is too high where
the same few come back for days. At the default margin and threshold that is 599 weighted ones of both arms together,
2,400 at half of the traffic; where subjects come back 738, and 2,950. Of simulated rollouts of an equal policy half
needed 2,400 or fewer, 90 % of them 5,750 (ADR 23).
A better policy takes less, a worse one is rolled back sooner.

**The horizon** is the time after which an unknown outcome is missing: 1.5 times the .99 quantile of the times that
outcomes of the stable policy took, from the announcement of the trajectory to its first known outcome. It is clamped:
too short a one calls slow outcomes missing, too long a one holds back every prefix and keeps more trajectories open
than there is room for. The setting holds where history is too short, or cannot be read. The rollout's record keeps the
horizon and where it comes from, and it holds until the rollout ends.

**The cap of costs** is four times the .99 quantile of what stable's trajectories of the last week cost: cut there, few
trajectories determine the mean. A claim about means needs a bound, and one from the rollout's own costs would be chosen
by what it is to bound. Cost is not compared where fewer than 100 of stable's trajectories have a price, where they cost
nothing, or where so many have a call without one that an equal canary could not be shown equal: an unknown cost of
the canary counts as the cap. With u the share of those, and m the mean cost in units of the cap, an equal canary's
folded harm (`cohorts.py`) is less than stable's by e = m (1 - u) - (m (1 - u) + u) / (1 + r), and its promotion e-value
grows about as exp(n w (1 - w) (s e - s^2 v / 2)), where v is the variance of the harm and s = e / v the sharpness, or
less, as the bound of a cost keeps stakes small. The forecast takes the longer of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ratchet.bus.message import JsonObject, Value
from ratchet.canary_deployer.domain.rules import COMPLAINT_MARGIN, COST_MARGIN, COSTS, FAILURE, Rules
from ratchet.canary_deployer.domain.subjects import SubjectsBefore
from ratchet.core.contract.http.rollouts import ComplaintsOut, CostCap, Horizon

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
UNKNOWN = SubjectsBefore()
"""Nothing is known of the role's subjects: each trajectory is taken for one."""
LARGEST_VARIANCE = 0.25
FEWEST_STARTS = 5
"""Fewer starts say nothing about a role's traffic."""

QUANTILE = 0.99
HEAD_ROOM = 1.5
FEWEST_OUTCOMES = 100
"""Fewer outcomes say nothing about the slowest one in a hundred."""
MOST_OPEN = 36_000
"""Open trajectories that a rollout has room for (`tests/bench/bench_canary.py`): 20 a second for half an hour."""


class Forecast(Value, frozen=True, kw_only=True):
    """How long a rollout of a policy that equals stable is expected to take."""

    per_day: float
    """Trajectories of the role that start in a day."""
    stages: tuple[float, ...]
    """Days in each stage."""
    soak: float
    """Days of the soak."""
    seen_in_s: float = 0.0
    """The time in which `per_day` was measured."""
    subjects_per_day: float = 0.0
    """Subjects that start in a day, each of which is one unit of evidence."""

    @property
    def days(self) -> float:
        """From the first traffic to the promotion."""
        return sum(self.stages) + self.soak

    def figures(self) -> JsonObject:
        """For events and operators."""
        return {
            "trajectories_per_day": round(self.per_day, 1),
            "seen_in_s": round(self.seen_in_s),
            "subjects_per_day": round(self.subjects_per_day, 1),
            "expected_days": round(self.days, 2),
            "expected_days_by_stage": [round(days, 2) for days in self.stages],
        }

    def sentence(self, rules: Rules) -> str:
        """The figures in one line, with the bound of the settings."""
        stages = ", ".join(f"{days:.1f}" for days in self.stages)
        return (
            f"at {self.per_day:.0f} trajectories of {self.subjects_per_day:.0f} subjects a day "
            f"a policy equal to stable takes about {self.days:.0f} days "
            f"({stages} by stage), the bound is {rules.longest_days:g}"
        )


def forecast(
    starts: int, span_s: float, rules: Rules, before: SubjectsBefore = UNKNOWN, cost: CostCap | None = None
) -> Forecast | None:
    """From the number of starts in `span_s` seconds; None when they are too few to say anything."""
    if starts < FEWEST_STARTS or span_s <= 0:
        return None
    return replace(forecast_at_rate(starts / span_s, rules, before, cost=cost), seen_in_s=span_s)


def forecast_at_rate(
    per_s: float,
    rules: Rules,
    before: SubjectsBefore = UNKNOWN,
    first_stage: int = 0,
    cost: CostCap | None = None,
) -> Forecast:
    """With `per_s` starts a second of subjects like those `before`, for a rollout that begins in this stage."""
    growth = max(rules.margin, 1e-3) ** 2 / (2 * LARGEST_VARIANCE)
    if cost is not None and cost.growth is not None:
        growth = min(growth, cost.growth)
    needed = math.log(rules.promotion_threshold / (1 - before.mean_share)) / growth
    days = [0.0] * first_stage
    for index, stage in enumerate(rules.stages[first_stage:], first_stage):
        weighted_per_s = stage.weight * (1 - stage.weight) * per_s * before.each
        seconds = max(stage.min_s, stage.min_trajectories / (stage.weight * per_s))
        if index == len(rules.stages) - 1:
            seconds = max(seconds, needed / weighted_per_s)
        needed = max(0.0, needed - weighted_per_s * seconds)
        days.append(seconds / DAY_S)
    return Forecast(
        per_day=per_s * DAY_S,
        stages=tuple(days),
        soak=rules.soak_s / DAY_S if rules.soaks else 0.0,
        subjects_per_day=per_s * DAY_S * before.each,
    )


def takes_too_long(expected: Forecast | None, rules: Rules) -> bool:
    """Whether an operator should decide instead of waiting."""
    return expected is not None and expected.days > rules.longest_days


def measured_horizon(took_s: Sequence[float], expected: Forecast | None, rules: Rules) -> Horizon:
    """The horizon from the times that stable's outcomes took; the setting where they are too few.

    With much traffic the upper bound is the one that leaves room for open trajectories, but never below the setting.
    """
    if len(took_s) < FEWEST_OUTCOMES:
        count = f"{len(took_s)} of {FEWEST_OUTCOMES} outcomes of stable"
        longest_h = rules.horizon_max_s / HOUR_S
        return horizon_by_setting(f"{count} are known of trajectories older than {longest_h:g} h", rules)
    longest_s = rules.horizon_max_s
    if expected is not None:
        longest_s = min(longest_s, max(MOST_OPEN / (expected.per_day / DAY_S), rules.horizon_s))
    slow_s = quantile(took_s, QUANTILE)
    return Horizon(
        seconds=min(max(HEAD_ROOM * slow_s, rules.horizon_min_s), longest_s),
        basis=f"{QUANTILE:.0%} of {len(took_s)} outcomes of stable were known within {slow_s:.0f} s",
        outcomes=len(took_s),
        quantile_s=slow_s,
    )


def horizon_by_setting(why: str, rules: Rules) -> Horizon:
    """The horizon of the settings, and why none was measured."""
    return Horizon(seconds=rules.horizon_s, basis=f"the setting: {why}")


TIMES_QUANTILE = 4.0
FEWEST_PRICED = 100
"""Fewer costs say nothing about the dearest trajectory in a hundred."""
SHARPEST = 2.0
"""The largest sharpness of a stake at half of the traffic, where a trajectory may cost as much as the cap."""


def measured_cost(costs_usd: Sequence[float | None], rules: Rules) -> CostCap:
    """The cap from what stable's trajectories cost, None for one with a call that has no price."""
    known = [cost for cost in costs_usd if cost is not None]
    priced, unpriced = len(known), len(costs_usd) - len(known)
    if priced < FEWEST_PRICED:
        known_before = "priced trajectories of stable are known that began more than 10 minutes before"
        return no_cost(f"{priced} of {FEWEST_PRICED} {known_before}", priced)
    dear_usd = quantile(known, QUANTILE)
    if dear_usd <= 0:
        return no_cost(f"{QUANTILE:.0%} of {priced} trajectories of stable cost nothing", priced)
    cap_usd = TIMES_QUANTILE * dear_usd
    growth = _growth([min(cost / cap_usd, 1.0) for cost in known], unpriced / len(costs_usd))
    if growth is None:
        share = f"{unpriced} of {len(costs_usd)} trajectories of stable have a call without a price"
        return no_cost(f"{share}: an equal cost could not be shown", priced)
    return CostCap(
        cap_usd=cap_usd,
        basis=f"{TIMES_QUANTILE:g} times the {dear_usd:.3g} USD that {QUANTILE:.0%} of {priced} trajectories of stable "
        "cost at most",
        trajectories=priced,
        quantile_usd=dear_usd,
        mean_usd=sum(known) / priced,
        growth=growth,
        more_evidence=_more_by_cost(rules.with_cost(cap_usd)),
    )


def no_cost(why: str, priced: int = 0) -> CostCap:
    """Cost is not compared, and why."""
    return CostCap(basis=why, trajectories=priced)


def _growth(costs: Sequence[float], unknown: float) -> float | None:
    """Of an equal canary's promotion e-value by cost, with this share of unknown costs; None where it does not grow."""
    mean = sum(costs) / len(costs)
    variance = max(sum(cost**2 for cost in costs) / len(costs) - mean**2, 1e-9)
    effect = mean * (1 - unknown) - (mean * (1 - unknown) + unknown) / (1 + COST_MARGIN)
    if effect <= 0:
        return None
    sharpness = min(effect / variance, SHARPEST)
    return sharpness * effect - sharpness**2 * variance / 2


def _more_by_cost(rules: Rules) -> float:
    return _more_evidence(rules, 1 / (1 - sum(rules.shares[name] for name in COSTS)))


def complaints_compared(rules: Rules) -> ComplaintsOut:
    """By how much complaints may differ, and what their share of the budget costs the other metrics."""
    budget = rules.budget
    return ComplaintsOut(
        margin=COMPLAINT_MARGIN,
        more_evidence=_more_evidence(rules, (budget.evidence + budget.complaints) / budget.evidence),
    )


def _more_evidence(rules: Rules, times: float) -> float:
    """How much further a rollback's e-value by one metric has to come, in logarithms, than with so many times its share
    of the error."""
    share = times * rules.budget.evidence * rules.shares.get(FAILURE, min(rules.shares.values()))
    return math.log(times) / -math.log(share)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
