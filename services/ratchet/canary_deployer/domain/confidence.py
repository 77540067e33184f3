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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

ALPHA = 0.05
TIGHTEST = 250.0
"""The variance r near which the intervals are tightest, of about 300 trajectories of each arm."""
LEAST = 4.0
"""Harm, and harmless trajectories, that each arm counts besides those that were seen."""


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


def limits_of(shares: Sequence[ShareArms]) -> Limits:
    """The limits of the difference over all shares, weighted by their sizes."""
    size, variance = sum(share.size for share in shares), sum(share.variance for share in shares)
    difference = sum(share.size * share.difference for share in shares) / size
    boundary = math.sqrt((variance + TIGHTEST) * math.log((variance + TIGHTEST) / (TIGHTEST * ALPHA**2)))
    return Limits(max(-1.0, difference - boundary / size), min(1.0, difference + boundary / size))


def share_difference(share: ShareArms) -> ShareDifference:
    """The difference under one share of traffic."""
    limits = limits_of([share])
    stable, canary = (int(count) for count in share.count)
    return ShareDifference(share.weight, share.difference, limits.low, limits.high, stable, canary)
