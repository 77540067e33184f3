"""By how much episodes that match triggers differ from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import bdtr, betaincinv, ndtri, stdtrit

from ratchet.analyst.mining.base import Codes, Episodes, Floats, Hypothesis, Mask

UNBOUNDED = frozenset({"cost_usd", "latency_ms", "tokens", "calls", "answer_chars"})
"""Measures whose values are clipped at the `TAIL` and `1 - TAIL` quantile of their window: a single trajectory that
took a thousand times as long as others makes no pattern."""
TAIL = 0.01
MISSING = 0.05
"""Share of intervals that do not hold what they are about."""
LONGEST_BLOCK = 4
"""Episodes of a subject in a window that form and test, its first: a user with thousands makes no pattern alone."""


def measured(episodes: Episodes, measure: str) -> Floats:
    """A measure (n,), clipped where it is unbounded; NaN where unknown."""
    values = episodes.measures.get(measure)
    if values is None:
        return np.full(len(episodes), np.nan)
    if measure not in UNBOUNDED or np.isnan(values).all():
        return values
    low, high = np.nanquantile(values, [TAIL, 1 - TAIL])
    return np.clip(values, low, high)


def compared(episodes: Episodes, hypothesis: Hypothesis) -> Floats:
    """What a hypothesis compares (n,)."""
    return measured(episodes, hypothesis.measure) if hypothesis.value is None else hypothesis.value(episodes)


def rank(ordered: Codes) -> Codes:
    """Place of each among its equals, in an order that has equals beside one another (n,)."""
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(starts, append=len(ordered))
    return (np.arange(len(ordered)) - np.repeat(starts, lengths)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of n episodes in two groups."""

    subject: Codes
    """Index of the subject (n,)."""
    group: Mask
    """Those that match, or those of the later window (n,)."""
    value: Floats
    """NaN where unknown (n,)."""

    def of(self, keep: Mask | Codes) -> Sample:
        return Sample(self.subject[keep], self.group[keep], self.value[keep])


@dataclass(frozen=True, slots=True)
class Pool:
    """Episodes of one window or of both that are compared with one another, n of them."""

    windows: tuple[tuple[Episodes, Mask], ...]
    """A window, and which of its episodes."""
    subject: Codes
    """Index of the subject (n,)."""
    later: Mask
    """Those of the last window (n,)."""

    @classmethod
    def of(cls, *windows: tuple[Episodes, Mask]) -> Self:
        hashes = np.concatenate([episodes.subject[keep] for episodes, keep in windows])
        subject = np.unique(hashes, return_inverse=True)[1].astype(np.int32)
        later = np.arange(len(hashes)) >= len(hashes) - np.count_nonzero(windows[-1][1])
        return cls(windows, subject, later)

    def sample(self, hypothesis: Hypothesis) -> Sample:
        """What the hypothesis compares, in the two groups that it is about."""
        value = np.concatenate([compared(episodes, hypothesis)[keep] for episodes, keep in self.windows])
        match = np.concatenate([episodes.matching(hypothesis.triggers)[keep] for episodes, keep in self.windows])
        if hypothesis.rare is not None:
            return Sample(self.subject, match, np.where(match, value, np.nan))
        if hypothesis.between_windows:
            return Sample(self.subject, self.later, np.where(match, value, np.nan))
        return Sample(self.subject, match, value)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the group less that of the others."""

    value: float
    """NaN where either is empty."""
    error: float
    """Standard error. Episodes of one subject count as one observation (Liang and Zeger, 1986)."""
    subjects: int
    """Of the group."""

    @property
    def z(self) -> float:
        """In standard errors; 0 where it is unknown."""
        return 0.0 if np.isnan(self.value) else self.value / max(self.error, 1e-12)

    def interval(self, missing: float = MISSING) -> tuple[float, float]:
        """By Student's t with one degree less than the group has subjects; of all such `missing` do not hold it."""
        reach = float(stdtrit(max(1, self.subjects - 1), 1 - missing / 2)) * self.error
        return self.value - reach, self.value + reach


@dataclass(frozen=True, slots=True)
class Rarity:
    """How many subjects have a 1, against a share that is called rare."""

    ones: int
    subjects: int
    rare: float

    @property
    def p_value(self) -> float:
        """The chance of so few where the share is `rare`: binomial; 1 without subjects."""
        return float(bdtr(self.ones, self.subjects, self.rare)) if self.subjects else 1.0

    @property
    def value(self) -> float:
        return self.ones / self.subjects if self.subjects else np.nan

    @property
    def z(self) -> float:
        """Positive where it is rare."""
        return float(-ndtri(np.clip(self.p_value, 1e-300, 1 - 1e-16)))

    def interval(self, missing: float = MISSING) -> tuple[float, float]:
        """Of Clopper and Pearson (1934)."""
        without = self.subjects - self.ones
        low = betaincinv(self.ones, without + 1, missing / 2) if self.ones else 0.0
        high = betaincinv(self.ones + 1, without, 1 - missing / 2) if without else 1.0
        return float(low), float(high)


def contrast(hypothesis: Hypothesis, sample: Sample) -> Difference | Rarity:
    """What the hypothesis claims, as the sample shows it."""
    return difference(sample) if hypothesis.rare is None else rarity(hypothesis.rare, sample)


def rarity(rare: float, sample: Sample) -> Rarity:
    known = ~np.isnan(sample.value)
    ones = len(np.unique(sample.subject[known & (sample.value > 0)]))
    return Rarity(ones, len(np.unique(sample.subject[known])), rare)


def difference(sample: Sample) -> Difference:
    known = ~np.isnan(sample.value)
    sample = sample.of(known)
    inside = int(np.count_nonzero(sample.group))
    outside = len(sample.group) - inside
    if not inside or not outside:
        return Difference(np.nan, np.nan, 0)
    means = sample.value[~sample.group].mean(), sample.value[sample.group].mean()
    influence = np.where(sample.group, (sample.value - means[1]) / inside, (means[0] - sample.value) / outside)
    by_subject = np.bincount(sample.subject, influence)
    subjects = len(np.unique(sample.subject[sample.group]))
    return Difference(float(means[1] - means[0]), float(np.sqrt(by_subject @ by_subject)), subjects)
