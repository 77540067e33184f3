"""Wilson's interval: known values, always in [0, 1], always around the rate, narrower with more trials."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ratchet.local.demo.exams import Proportion

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # R: prop.test(81, 263, correct = FALSE) and the limits for none and for all.
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0.0, 0.1611),
        (20, 20, 0.8389, 1.0),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_known_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert Proportion(successes, trials).interval == pytest.approx((low, high), abs=1e-4)


@given(counts)
def test_the_interval_lies_in_the_unit_range_and_holds_the_rate(count: tuple[int, int]) -> None:
    measured = Proportion(*count)
    low, high = measured.interval
    assert 0 <= low <= measured.rate + 1e-12
    assert measured.rate - 1e-12 <= high <= 1


@given(counts)
def test_ten_times_the_trials_narrow_the_interval(count: tuple[int, int]) -> None:
    few, many = Proportion(*count), Proportion(10 * count[0], 10 * count[1])
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]


def test_above_means_that_the_intervals_do_not_touch() -> None:
    assert Proportion(240, 300).is_above(Proportion(150, 300))
    assert not Proportion(165, 300).is_above(Proportion(150, 300))


@pytest.mark.parametrize("count", [(1, 0), (3, 2), (-1, 5)])
def test_impossible_counts_are_refused(count: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        Proportion(*count)
