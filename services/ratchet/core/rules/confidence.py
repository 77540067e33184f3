"""How far the true difference between the arms may be from the one that is seen, at every moment at once. Pure.

People look at a rollout whenever they like, so an interval for one look would miss the truth far too often. These are
confidence sequences: with 95 % probability an interval holds the true difference at *all* looks at a rollout:
each interval by itself, of a metric, as a whole or at one share, not all of them together. Under one share of
traffic n trajectories, of which each arm has n_a with mean harm h_a, give the difference of the means; its sum n (h_c -
h_s) has a variance of about n^2 (v_c / n_c + v_s / n_s). A harm in [0, 1] varies by h (1 - h) at most, and that is
what v counts. Shares add up. With V the variance of the whole sum, it stays within

    sqrt((V + r) ln((V + r) / (r a^2)))

of its expectation at all times with probability 1 - a (the normal mixture of Robbins 1970; for means whose variance is
estimated: Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas 2024). That is asymptotic: `LEAST` keeps v from being too small
while one arm has few trajectories, as at a share of 1 %. The decision does not depend on it; the e-values decide, whose
guarantee is exact.

**Cost** is shown relative to stable's. If the canary costs q times as much, the sum n (x_c - q x_s) of the mean costs x
has expectation 0, and stays within the same bound, with V = n^2 (v_c / n_c + q^2 v_s / n_s) and v the variance that is
seen. The interval are those q for which it does (Fieller 1954): with 95 % probability the true one is among them at all
times. x is cut at the cap, and of trajectories whose cost is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

ALPHA = 0.05
TIGHTEST = 250.0
"""The variance r near which the intervals are tightest, of about 300 trajectories of each arm."""
LEAST = 4.0
"""Harm, and harmless trajectories, that each arm counts besides those that were seen."""


TIGHTEST_COST = 4.0
"""The same of costs in units of the cap, four times their .99 quantile: there the variance is about .003."""
MOST_TIMES = 100.0
"""Limits of a relative cost end here."""


@dataclass(frozen=True, slots=True)
class ShareArms:
    """Both arms under one share of traffic; tuples are stable, canary."""

    weight: float
    count: tuple[float, ...]
    harm: tuple[float, ...]

    @property
    def size(self) -> float:
        """Trajectories of both."""
        return sum(self.count)

    @property
    def difference(self) -> float:
        """Mean harm of the canary less that of stable."""
        stable, canary = (harm / count for harm, count in zip(self.harm, self.count, strict=True))
        return canary - stable

    @property
    def variance(self) -> float:
        """Of `size * difference`, at most."""
        shrunk = [(harm + LEAST) / (count + 2 * LEAST) for harm, count in zip(self.harm, self.count, strict=True)]
        return self.size**2 * sum(mean * (1 - mean) / count for mean, count in zip(shrunk, self.count, strict=True))


@dataclass(frozen=True, slots=True)
class ShareCosts:
    """Known costs of both arms under one share of traffic, in units of the cap; tuples are stable, canary."""

    weight: float
    count: tuple[float, ...]
    spent: tuple[float, ...]
    squared: tuple[float, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """What a trajectory costs."""
        return tuple(spent / count for spent, count in zip(self.spent, self.count, strict=True))

    @property
    def variances(self) -> tuple[float, ...]:
        """Of the mean costs; as if each arm had one more trajectory, at four times the mean."""
        return tuple(
            ((squared + (4 * mean) ** 2) / (count + 1) - mean**2) / count
            for squared, mean, count in zip(self.squared, self.means, self.count, strict=True)
        )


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Of a difference."""

    low: float
    high: float


class ShareDifference(msgspec.Struct, frozen=True):
    """A difference and its limits under one share of traffic."""

    weight: float
    difference: float
    low: float
    high: float
    stable: int
    """Trajectories of each arm."""
    canary: int


def limits_of(shares: Sequence[ShareArms], alpha: float = ALPHA) -> Limits:
    """The limits of the difference over all shares, weighted by their sizes."""
    size, variance = sum(share.size for share in shares), sum(share.variance for share in shares)
    difference = sum(share.size * share.difference for share in shares) / size
    boundary = math.sqrt((variance + TIGHTEST) * math.log((variance + TIGHTEST) / (TIGHTEST * alpha**2)))
    return Limits(max(-1.0, difference - boundary / size), min(1.0, difference + boundary / size))


def share_difference(share: ShareArms) -> ShareDifference:
    """The difference under one share of traffic."""
    limits = limits_of([share])
    stable, canary = (int(count) for count in share.count)
    return ShareDifference(share.weight, share.difference, limits.low, limits.high, stable, canary)


def cost_limits_of(shares: Sequence[ShareCosts]) -> tuple[float, Limits] | None:
    """How much dearer the canary is relative to stable, over all shares, with its limits; None while nothing costs."""
    sizes = [sum(share.count) for share in shares]
    stable, canary = (sum(n * share.means[arm] for n, share in zip(sizes, shares, strict=True)) for arm in (0, 1))
    v_s, v_c = (sum(n**2 * share.variances[arm] for n, share in zip(sizes, shares, strict=True)) for arm in (0, 1))
    if stable <= 0:
        return None

    def is_possible(times: float) -> bool:
        variance = v_c + times**2 * v_s + TIGHTEST_COST
        boundary = math.sqrt(variance * math.log(variance / (TIGHTEST_COST * ALPHA**2)))
        return abs(canary - times * stable) <= boundary

    seen = canary / stable
    low, high = _edge(is_possible, seen, 0.0), _edge(is_possible, seen, max(MOST_TIMES, seen))
    return seen - 1, Limits(low - 1, high - 1)


def mean_limits_of(shares: Sequence[ShareCosts], tightest: float, alpha: float = ALPHA) -> tuple[float, Limits]:
    """The difference of the means over all shares, weighted by their sizes, and its limits: of values without a bound,
    by the variance that is seen. `tightest`: the variance of the whole sum near which the limits are tightest, fixed
    before a value was seen."""
    size = sum(sum(share.count) for share in shares)
    variance = tightest + sum(sum(share.count) ** 2 * sum(share.variances) for share in shares)
    difference = sum(sum(share.count) * (share.means[1] - share.means[0]) for share in shares) / size
    boundary = math.sqrt(variance * math.log(variance / (tightest * alpha**2))) / size
    return difference, Limits(difference - boundary, difference + boundary)


def _edge(is_possible: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where between both it ends to be possible; the outer one where it does not."""
    if is_possible(outside):
        return outside
    for _ in range(40):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_possible(middle) else (inside, middle)
    return outside


def share_cost_difference(share: ShareCosts) -> ShareDifference | None:
    """How much dearer the canary is under one share of traffic."""
    whole = cost_limits_of([share])
    if whole is None:
        return None
    stable, canary = (int(count) for count in share.count)
    return ShareDifference(share.weight, whole[0], whole[1].low, whole[1].high, stable, canary)
