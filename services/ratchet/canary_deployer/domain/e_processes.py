"""Tests of the canary that may be looked at after every trajectory: e-processes on harm differences.

Every metric is a harm in [0, 1], higher is worse. With the canary weight w in force when trajectory i started and a
centre m that was known before it, the inverse-probability-weighted difference

    Z = (harm - m) / w  on the canary arm,   Z = -(harm - m) / (1 - w)  on the stable arm

has conditional mean D = E[harm | canary] - E[harm | stable] (Horvitz & Thompson 1952). For a margin d and a stake
lambda >= 0 that is known before trajectory i and keeps the wealth positive,

    rollback   prod(1 + lambda (Z - d))   is a test supermartingale while D <= d ("not worse than the margin"),
    promotion  prod(1 + lambda (d - Z))   is one while D >= d ("worse than the margin")

(betting: Waudby-Smith & Ramdas 2024, Estimating means of bounded random variables by betting; known propensities in
sequential experiments: Howard, Ramdas, McAuliffe & Sekhon 2021). By Ville's inequality either exceeds 1/alpha with
probability at most alpha, however often one looks.
A uniform mixture over several stakes is again one, and so is an average over metrics as long as all their nulls hold
(Vovk & Wang 2021). That average is the rollback test: its null is that *no* metric is worse than its margin. The
negation, "some metric is worse", is a union, for which an average proves nothing; promotion therefore asks every one
of its metrics for the evidence (intersection-union test: Berger 1982).

Rollback on failures is conditional thinning: m = 0 and lambda = w (1 - w) (theta - 1) / (w theta + 1 - w). Without a
margin the factor of a failure is then exactly the likelihood ratio of its arm, theta / (w theta + 1 - w) on the canary
and 1 / (w theta + 1 - w) on the stable arm, when the canary fails theta times as often (Lindon & Malek 2022,
Anytime-valid inference for multinomial count data); successes count only through the margin. Promotion on failures
bets like the other metrics: there the successes are the evidence.

The order of trajectories is the order in which they finish. Under the nulls the conditional mean needs that order to
carry no information about the arm: an arm that only takes longer shifts a few trajectories at the start of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROLLBACK, PROMOTION = "rollback", "promotion"

RISK_RATIOS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
"""How many times as often the canary fails, under the alternatives that conditional thinning tests against."""

SHARPNESS = (0.15, 0.3, 0.6, 1.2, 2.4, 4.8)
"""Stakes for bounded harms in units of w (1 - w): the best one is (effect beyond the margin) / (variance of harm)."""

LARGEST_STAKE = 0.95
"""Share of the wealth that one trajectory may cost."""

MIN_WEIGHT = 1e-3
"""A weight this close to 0 or 1 leaves nothing to compare: such trajectories are not tested."""


@dataclass(frozen=True, slots=True)
class Look:
    """One finished trajectory as a test sees it."""

    canary: bool
    weight: float
    """Probability of the canary arm when it started."""
    harm: float
    """0..1, higher is worse."""


@dataclass(frozen=True, slots=True)
class ArmMean:
    """Running count and sum of a harm on one arm."""

    count: int = 0
    total: float = 0.0

    def with_harm(self, harm: float) -> ArmMean:
        return ArmMean(self.count + 1, self.total + harm)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def shrunk(self) -> float:
        """The mean with half a pseudo-observation on either side, so that it is defined from the start."""
        return (self.total + 0.5) / (self.count + 1)


@dataclass(frozen=True, slots=True)
class MetricTest:
    """Both e-processes of one metric: log-wealth per stake, and what either arm has shown so far."""

    rollback: tuple[float, ...]
    promotion: tuple[float, ...]
    stable: ArmMean = ArmMean()
    canary: ArmMean = ArmMean()

    @property
    def difference(self) -> float | None:
        """Observed harm of the canary minus that of the stable arm; None until both have been seen."""
        if self.canary.mean is None or self.stable.mean is None:
            return None
        return self.canary.mean - self.stable.mean

    @property
    def e_rollback(self) -> float:
        return mixture(self.rollback)

    @property
    def e_promotion(self) -> float:
        return mixture(self.promotion)


def fresh_failure_test() -> MetricTest:
    """Nothing seen: wealth 1 on every alternative."""
    return MetricTest((0.0,) * len(RISK_RATIOS), (0.0,) * len(SHARPNESS))


def fresh_harm_test() -> MetricTest:
    """Nothing seen: wealth 1 on every stake."""
    return MetricTest((0.0,) * len(SHARPNESS), (0.0,) * len(SHARPNESS))


def observe_failure(test: MetricTest, look: Look, margin: float) -> MetricTest:
    """The test after one more trajectory, which failed (harm 1) or did not (harm 0)."""
    gain = weighted_difference(look, 0.0) - margin
    rollback = _grow(test.rollback, thinning_stakes(look.weight, margin), gain)
    return _next(test, look, rollback, _bet(PROMOTION, test, look, margin))


def observe_harm(test: MetricTest, look: Look, margin: float) -> MetricTest:
    """The test after one more trajectory with a bounded harm."""
    return _next(test, look, _bet(ROLLBACK, test, look, margin), _bet(PROMOTION, test, look, margin))


def weighted_difference(look: Look, centre: float) -> float:
    """Z of the module's docstring."""
    return (look.harm - centre) / look.weight if look.canary else -(look.harm - centre) / (1 - look.weight)


def best_centre(test: MetricTest, weight: float) -> float:
    """The centre that makes Z vary least, estimated from what was seen before."""
    return (1 - weight) * test.canary.shrunk + weight * test.stable.shrunk


def thinning_stakes(weight: float, margin: float) -> list[float]:
    """Stakes of conditional thinning, one per risk ratio."""
    largest = largest_stake(ROLLBACK, weight, 0.0, margin)
    return [min(weight * (1 - weight) * (theta - 1) / (weight * theta + 1 - weight), largest) for theta in RISK_RATIOS]


def harm_stakes(family: str, weight: float, centre: float, margin: float) -> list[float]:
    """Stakes for a bounded harm, one per sharpness."""
    largest = largest_stake(family, weight, centre, margin)
    return [min(sharpness * weight * (1 - weight), largest) for sharpness in SHARPNESS]


def mixture(log_wealth: Sequence[float]) -> float:
    """The e-value: mean wealth over the stakes."""
    top = max(log_wealth)
    return math.exp(min(top, 500.0)) * sum(math.exp(value - top) for value in log_wealth) / len(log_wealth)


def average(e_values: Mapping[str, float]) -> float:
    """One e-value from several metrics that share a null. Nothing measured is no evidence: 1."""
    return sum(e_values.values()) / len(e_values) if e_values else 1.0


def largest_stake(family: str, weight: float, centre: float, margin: float) -> float:
    """The stake at which the worst possible trajectory leaves 1 - LARGEST_STAKE of the wealth."""
    if family == ROLLBACK:
        worst = max(centre / weight, (1 - centre) / (1 - weight)) + margin
    else:
        worst = max((1 - centre) / weight, centre / (1 - weight)) - margin
    return LARGEST_STAKE / worst


def _bet(family: str, test: MetricTest, look: Look, margin: float) -> tuple[float, ...]:
    centre = best_centre(test, look.weight)
    beyond = weighted_difference(look, centre) - margin
    stakes = harm_stakes(family, look.weight, centre, margin)
    return _grow(test.rollback, stakes, beyond) if family == ROLLBACK else _grow(test.promotion, stakes, -beyond)


def _grow(log_wealth: Sequence[float], stakes: Sequence[float], gain: float) -> tuple[float, ...]:
    return tuple(wealth + math.log1p(stake * gain) for wealth, stake in zip(log_wealth, stakes, strict=True))


def _next(test: MetricTest, look: Look, rollback: tuple[float, ...], promotion: tuple[float, ...]) -> MetricTest:
    if look.canary:
        return MetricTest(rollback, promotion, test.stable, test.canary.with_harm(look.harm))
    return MetricTest(rollback, promotion, test.stable.with_harm(look.harm), test.canary)
