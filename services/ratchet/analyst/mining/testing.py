"""Tests of hypotheses on subjects that did not form them, by permutation of subjects.

The episodes of a subject stay together: among subjects with equally many episodes it is permuted whose outcomes go
with whose attributes (an exact test where attributes and outcomes have nothing to do with each other, however long a
subject's luck lasts and however heavy the tails). The statistic is a difference in standard errors that count a subject
once, so that the test also keeps its level, for many subjects, where groups differ in spread only (Chung and Romano,
2013). It is one-sided, towards the sign that the forming part shows.

A p-value is `(1 + exceeding) / (1 + drawn)` (Phipson and Smyth, 2010), or `ENOUGH / drawn` where drawing stops early
since `ENOUGH` exceed (Besag and Clifford, 1991). Nothing is extrapolated below the resolution of the draws: as many are
drawn as the level of the run asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ratchet.analyst.mining.base import FIRST, FORMING, SECOND, Codes, Episodes, Floats, Hypothesis, Mask
from ratchet.analyst.mining.measure import LONGEST_BLOCK, Pool, Sample, contrast, rank, rarity

ENOUGH = 25
BATCH = 250
"""Draws at once: 25 MB for 25,000 subjects."""
FEWEST_DRAWS, MOST_DRAWS = 3_999, 40_000


@dataclass(frozen=True, slots=True)
class Pools:
    """The parts of two windows that form and test: associations and comparisons between windows have their own."""

    forming: Pool
    """Both windows."""
    associations: tuple[Pool, Pool]
    """Of the earlier window the first quarter of the subjects, of the later one the second."""
    between: tuple[Pool, Pool]
    """Of both windows the first quarter, then the second; each subject in one window only, by its hash."""

    @classmethod
    def of(cls, before: Episodes, now: Episodes) -> Pools:
        parts = before.part(), now.part()
        sides = _side(before), _side(now)
        return cls(
            Pool.of((before, parts[0] == FORMING), (now, parts[1] == FORMING)),
            (Pool.of((before, parts[0] == FIRST)), Pool.of((now, parts[1] == SECOND))),
            (_between(before, now, sides, FIRST), _between(before, now, sides, SECOND)),
        )

    def tests(self, hypothesis: Hypothesis) -> tuple[Pool, Pool]:
        return self.between if hypothesis.between_windows else self.associations

    def whole(self, hypothesis: Hypothesis) -> Sample:
        """Both test samples together: what an effect is estimated from."""
        first, second = (pool.sample(hypothesis) for pool in self.tests(hypothesis))
        return Sample(
            np.concatenate([first.subject, second.subject + (first.subject.max(initial=-1) + 1)]),
            np.concatenate([first.group, second.group]),
            np.concatenate([first.value, second.value]),
        )


def _side(episodes: Episodes) -> Mask:
    """Whether a subject counts in the later window, where windows are compared."""
    return ((episodes.subject >> np.uint64(17)) & np.uint64(1)).astype(np.bool_)


def _between(before: Episodes, now: Episodes, sides: tuple[Mask, Mask], part: int) -> Pool:
    return Pool.of((before, (before.part() == part) & ~sides[0]), (now, (now.part() == part) & sides[1]))


def p_values(pools: Pools, hypotheses: Sequence[Hypothesis], alpha: float, seed: int) -> Floats:
    """Of both tests together, (m,): the square of the larger one, which under no effect is uniform or larger."""
    draws = draws_for(alpha, len(hypotheses))
    larger = np.zeros(len(hypotheses))
    signs = [formed_sign(pools, hypothesis) for hypothesis in hypotheses]
    for i, hypothesis in enumerate(hypotheses):
        if hypothesis.rare is not None:
            larger[i] = max(
                rarity(hypothesis.rare, pool.sample(hypothesis)).p_value for pool in pools.tests(hypothesis)
            )
    for between in (False, True):
        rows = [i for i, h in enumerate(hypotheses) if h.rare is None and h.between_windows == between]
        for which in (0, 1):
            pool = (pools.between if between else pools.associations)[which]
            samples = [_towards(pool.sample(hypotheses[i]), signs[i]) for i in rows]
            random = np.random.default_rng([seed, which, between])
            larger[rows] = np.maximum(larger[rows], _permuted(pool, samples, draws, random))
    joined = {i: hypothesis.also for i, hypothesis in enumerate(hypotheses) if hypothesis.also is not None}
    if joined:
        rows = [*joined]
        larger[rows] = np.maximum(larger[rows], np.sqrt(p_values(pools, [*joined.values()], alpha, seed)))
    return larger**2


def formed_sign(pools: Pools, hypothesis: Hypothesis) -> float:
    """Of the difference in the part that formed the hypothesis."""
    return float(np.sign(contrast(hypothesis, pools.forming.sample(hypothesis)).z))


def draws_for(alpha: float, count: int) -> int:
    """Draws whose smallest p-value is a quarter of what the strictest of `count` comparisons asks of each test."""
    asked = np.sqrt(max(alpha, 1e-12) / max(1, count))
    return int(np.clip(np.ceil(4 / asked), FEWEST_DRAWS, MOST_DRAWS))


def _towards(sample: Sample, sign: float) -> Sample:
    return replace(sample, value=sample.value * sign)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Episodes by subject, subjects with equally many beside one another: n episodes of s subjects."""

    episode: Codes
    """Index into the pool (n,)."""
    subject: Codes
    """Rising (n,)."""
    rank: Codes
    """Among those of the subject (n,)."""
    start: Codes
    """A subject's first place in `episode` (s,)."""
    strata: tuple[tuple[int, int], ...]
    """First subject and end of those with equally many."""

    @classmethod
    def of(cls, subject: Codes) -> _Blocks:
        order = np.argsort(subject, kind="stable")
        counts = np.bincount(subject)
        place = rank(subject[order])
        order, place = order[place < LONGEST_BLOCK], place[place < LONGEST_BLOCK]
        sizes = np.minimum(counts, LONGEST_BLOCK)
        again = np.argsort(sizes[subject[order]], kind="stable")
        order, place = order[again], place[again]
        start = np.flatnonzero(place == 0).astype(np.int32)
        sizes = np.diff(start, append=len(order))
        edges = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
        codes = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
        strata = tuple(pairwise(edges))
        return cls(order.astype(np.int32), codes, place, start, strata)

    def drawn(self, count: int, random: np.random.Generator) -> Codes:
        """`count` permutations of the subjects (count, s) within their strata."""
        parts = [np.tile(np.arange(first, end, dtype=np.int32), (count, 1)) for first, end in self.strata]
        return np.concatenate([random.permuted(part, axis=1) for part in parts], axis=1)


@dataclass(frozen=True, slots=True)
class _Statistic:
    """Difference of a sample in standard errors, for permutations of the subjects."""

    place: Codes
    """Of the g episodes of the group: the place in the layout less the subject's start (g,)."""
    subject: Codes
    """Their subject (g,)."""
    starts: Codes
    """Where each of the h subjects of the group begins among them (h,)."""
    residual: Floats
    """Value less the mean of those whose subjects have as many episodes; 0 where unknown (n,)."""
    total: Floats
    """Of `residual` by subject (s,)."""
    size: Floats
    """Episodes of each subject (s,)."""
    own: Floats
    """Those of them in the group, of the subjects of the group (h,)."""

    @classmethod
    def of(cls, blocks: _Blocks, sample: Sample) -> _Statistic:
        sample = sample.of(blocks.episode)
        size = np.diff(blocks.start, append=len(blocks.episode))
        sizes, known = size[blocks.subject], ~np.isnan(sample.value)
        number = np.maximum(np.bincount(sizes, known), 1)
        mean = np.bincount(sizes, np.where(known, sample.value, 0.0)) / number
        residual = np.where(known, sample.value - mean[sizes], 0.0)
        smaller = np.count_nonzero(sample.group) * 2 <= len(sample.group)
        group = np.flatnonzero(sample.group == smaller)
        residual = residual if smaller else -residual
        subject = blocks.subject[group]
        starts = np.flatnonzero(np.diff(subject, prepend=-1)).astype(np.int32)
        own = np.diff(starts, append=len(group)).astype(np.float64)
        total = np.bincount(blocks.subject, residual).astype(np.float64)
        return cls(blocks.rank[group], subject, starts, residual, total, size.astype(np.float64), own)

    def of_permuted(self, start: Codes, permuted: Codes) -> Floats:
        """One value for each permutation (b, s): (b,)."""
        members = self.subject[self.starts]
        inside = np.add.reduceat(self.residual[start[permuted[:, self.subject]] + self.place], self.starts, axis=1)
        total, size = self.total[permuted[:, members]], self.size[members]
        own, others = len(self.subject), len(self.residual) - len(self.subject)
        mean = inside.sum(axis=1) / own
        mean_others = (self.total.sum() - mean * own) / others
        spread = (inside - mean[:, None] * self.own) / own
        spread -= (total - inside - mean_others[:, None] * (size - self.own)) / others
        left = self.total @ self.total - np.einsum("bh,bh->b", total, total)
        left -= 2 * mean_others * (self.total @ self.size - total @ size)
        left += mean_others**2 * (self.size @ self.size - size @ size)
        variance = np.einsum("bh,bh->b", spread, spread) + np.maximum(left, 0.0) / others**2
        return (mean - mean_others) / np.sqrt(np.maximum(variance, 1e-12))


def _permuted(pool: Pool, samples: Sequence[Sample], draws: int, random: np.random.Generator) -> Floats:
    """One-sided p-values of the samples of a pool (m,); 1 where a sample has but one group."""
    p_value, exceeding = np.ones(len(samples)), np.zeros(len(samples), dtype=np.int64)
    blocks = _Blocks.of(pool.subject)
    statistics = {
        i: _Statistic.of(blocks, s) for i, s in enumerate(samples) if 0 < np.count_nonzero(s.group) < len(s.group)
    }
    active = {i: s for i, s in statistics.items() if len(s.place)}
    identity = np.arange(len(blocks.start), dtype=np.int32)[None]
    observed = {i: s.of_permuted(blocks.start, identity)[0] for i, s in active.items()}
    for drawn in range(0, draws, BATCH):
        if not active:
            break
        permuted = blocks.drawn(min(BATCH, draws - drawn), random)
        for i, statistic in tuple(active.items()):
            exceeds = statistic.of_permuted(blocks.start, permuted) >= observed[i] - 1e-9
            reached = np.searchsorted(np.cumsum(exceeds), ENOUGH - exceeding[i])
            exceeding[i] += np.count_nonzero(exceeds)
            if reached < len(exceeds):
                p_value[i] = ENOUGH / (drawn + reached + 1)
                del active[i]
    for i in active:
        p_value[i] = (1 + exceeding[i]) / (1 + draws)
    return p_value
