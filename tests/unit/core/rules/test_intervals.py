"""Intervals say how little is known."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ratchet.core.rules.intervals import mean_interval, paired_difference, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (23, 46, 0.3612, 0.6388),
        (30, 46, 0.5077, 0.7732),
    ],
)
def test_the_interval_of_a_proportion(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("variance", "count", "half"),
    [(1.0, 2, 8.985), (1.0, 10, 0.7154), (1.0, 31, 0.3668), (4.0, 1000, 0.1241)],
)
def test_the_interval_of_a_mean(variance: float, count: int, half: float) -> None:
    """Of Student's table; beyond it by the first term of its expansion."""
    assert mean_interval(0.5, variance, count) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)


def test_a_mean_of_fewer_than_two_or_of_equal_values_has_no_interval() -> None:
    assert mean_interval(0.5, 0.1, 1) is None
    assert mean_interval(0.0, 0.0, 40) is mean_interval(0.1, 1e-34, 40) is mean_interval(1e6, 1e-9, 40) is None


@pytest.mark.parametrize(
    ("gained", "lost", "same", "low", "high"), [(20, 8, 72, 0.0149, 0.2204), (0, 0, 10, -0.2310, 0.2310)]
)
def test_the_interval_of_a_paired_difference(gained: int, lost: int, same: int, low: float, high: float) -> None:
    """Computed by hand with the formula of Bonett and Price."""
    before, after = [0.0] * gained + [1.0] * lost + [0.5] * same, [1.0] * gained + [0.0] * lost + [0.5] * same
    assert paired_difference(before, after) == pytest.approx((low, high), abs=1e-4)


SCORES = st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), max_size=30)


@given(SCORES)
def test_a_paired_difference_turned_round_is_its_negative(scores: list[tuple[float, float]]) -> None:
    before, after = [score for score, _ in scores], [score for _, score in scores]
    low, high = paired_difference(before, after)
    assert -1 <= low < high <= 1
    assert paired_difference(after, before) == pytest.approx((-high, -low))
    if scores:
        assert low <= (sum(after) - sum(before)) / len(scores) <= high
