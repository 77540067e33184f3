"""Which episodes match triggers, by how much they differ from the others, and an existing pattern measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import stdtrit

from ratchet.analyst.mining.base import Codes, Episodes, Floats, Hypothesis, Mask
from ratchet.core.contract.learning import Effect, Pattern, Trigger

UNBOUNDED = frozenset({"cost_usd", "latency_ms", "tokens", "calls", "answer_chars"})
"""Measures whose values are clipped at the `TAIL` and `1 - TAIL` quantile of their window: a single trajectory that
took a thousand times as long as others makes no pattern."""
TAIL = 0.01


def matches(episodes: Episodes, triggers: Sequence[Trigger]) -> Mask:
    """Which episodes (n,) hold all triggers; none: all episodes."""
    mask = np.ones(len(episodes), dtype=np.bool_)
    for trigger in triggers:
        mask &= _holds(episodes, trigger)
    return mask


def _holds(episodes: Episodes, trigger: Trigger) -> Mask:
    holds = np.zeros(len(episodes), dtype=np.bool_)
    column, members = episodes.columns.get(trigger.attribute), episodes.members.get(trigger.attribute)
    if column is not None and trigger.value in column.values:
        return column.codes == column.values.index(trigger.value)
    if members is not None and trigger.value in members.values:
        index = members.values.index(trigger.value)
        first, end = members.matrix.indptr[index], members.matrix.indptr[index + 1]
        holds[members.matrix.indices[first:end]] = True
    return holds


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
        match = np.concatenate([matches(episodes, hypothesis.triggers)[keep] for episodes, keep in self.windows])
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

    def interval(self) -> tuple[float, float]:
        """95 % interval, by Student's t with one degree less than the group has subjects."""
        reach = float(stdtrit(max(1, self.subjects - 1), 0.975)) * self.error
        return self.value - reach, self.value + reach


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


@dataclass(frozen=True, slots=True)
class Measured:
    """A pattern in a window."""

    share: float
    count: int
    effect: Effect | None
    """None where the window cannot tell: nothing matches, everything does, or the measure is unknown."""


def measure_again(pattern: Pattern, before: Episodes, now: Episodes) -> Measured:
    """An existing pattern in the window `now`; one of drift against the window `before`."""
    drifted = pattern.kind == "drift"
    hypothesis = Hypothesis(pattern.kind, pattern.finding, pattern.effect.measure, pattern.triggers, drifted)
    windows = (before, now) if drifted else (now,)
    pool = Pool.of(*((episodes, np.ones(len(episodes), dtype=np.bool_)) for episodes in windows))
    count = int(np.count_nonzero(matches(now, pattern.triggers)))
    share = count / max(1, len(now))
    found = difference(pool.sample(hypothesis))
    if np.isnan(found.value):
        return Measured(share, count, None)
    low, high = found.interval()
    return Measured(share, count, Effect(measure=pattern.effect.measure, value=found.value, low=low, high=high))
