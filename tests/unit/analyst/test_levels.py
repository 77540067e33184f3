"""Levels within a run, standard errors and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.analyst.mining.base import Hypothesis, Mask
from ratchet.analyst.mining.family import borne_out
from ratchet.analyst.mining.measure import Pool, Rarity, Sample, difference
from ratchet.analyst.mining.testing import draws_for
from ratchet.core.contract.learning import Trigger
from tools.analyst.worlds import planted, world


def test_family_follows_benjamini_and_hochberg() -> None:
    p_values = np.array([0.012, 0.9, 0.001, 0.026, 0.3])
    assert borne_out(p_values, 0.05).tolist() == [True, False, True, True, False]
    assert borne_out(np.array([]), 0.05).tolist() == []


def test_family_allows_more_after_discoveries() -> None:
    assert borne_out(np.array([0.04, 0.9]), 0.01).tolist() == [False, False]
    assert borne_out(np.array([0.04, 0.9]), 0.01, discoveries=9).tolist() == [True, False]


def test_known_hypotheses_count_as_no_discoveries() -> None:
    known = np.array([True, True, True, False, False])
    p_values = np.array([1e-9, 1e-9, 1e-9, 0.02, 0.9])
    assert borne_out(p_values, 0.05).tolist() == [True, True, True, True, False]
    assert borne_out(p_values, 0.05, known=known).tolist() == [True, True, True, False, False]


def test_intervals_are_wider_where_fewer_miss() -> None:
    wide = difference(Sample(np.arange(40, dtype=np.int32), np.arange(40) % 2 == 0, np.arange(40.0)))
    for of in (wide, Rarity(3, 100, 0.1)):
        (low, high), (lower, higher) = of.interval(), of.interval(0.01)
        assert lower < low < high < higher


def test_draws_resolve_what_the_level_asks_of_each_test() -> None:
    for alpha, count in ((0.05, 3), (2.2e-5, 60), (2.2e-5, 150)):
        assert (1 / (1 + draws_for(alpha, count))) ** 2 < alpha / count


def test_subjects_count_once_in_the_error_of_a_difference() -> None:
    truth = world(3000, (), seed=1)
    pool = Pool.of((truth.now, np.ones(3000, dtype=np.bool_)))
    trait = Trigger(attribute="language", value="language 0")
    sample = pool.sample(Hypothesis("association", "language", "failure", (trait,)))
    known = ~np.isnan(sample.value)
    plain = np.sqrt(sum(sample.value[known & side].var() / np.count_nonzero(known & side) for side in _sides(sample)))
    assert difference(sample).error > 1.1 * plain


def _sides(sample: Sample) -> tuple[Mask, Mask]:

    return sample.group, ~sample.group


def test_intervals_cover_a_planted_effect() -> None:
    covered = 0
    for seed in range(10):
        truth = world(1000, planted(0.2, 0.5)[1:2], seed)
        pool = Pool.of((truth.now, np.ones(1000, dtype=np.bool_)))
        late = Hypothesis("association", "term", "failure", (truth.planted[0].trigger,))
        low, high = difference(pool.sample(late)).interval()
        covered += low <= 0.2 <= high
    assert covered >= 8


def test_rarity_without_ones_has_the_chance_of_none() -> None:
    assert Rarity(0, 500, 0.01).p_value == pytest.approx(0.99**500)
    assert Rarity(0, 0, 0.01).p_value == 1.0
    assert Rarity(0, 500, 0.01).z > 0 > Rarity(50, 500, 0.01).z
