"""How far people agree with a judge: kappa as it is defined, an interval that covers it, and when a judge may count."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from ratchet.core.judging.calibration import MIN_LABELS, UNCALIBRATED, calibration

GOOD, BAD = 1.0, 0.0


def labels(both: int, people: int, judge: int, neither: int) -> list[tuple[float, float]]:
    """So many that both call good, people alone, the judge alone, and neither."""
    return [(GOOD, 0.9)] * both + [(GOOD, 0.1)] * people + [(BAD, 0.9)] * judge + [(BAD, 0.1)] * neither


def test_kappa_is_that_of_cohen() -> None:
    """Of 50, .7 agree, and .5 would by chance: .4, with a standard error of .127 before anything is added."""
    made = calibration(labels(20, 5, 10, 15))
    assert (made.kappa, made.labels, made.agreed) == (pytest.approx(0.4), 50, 35)
    assert made.low == pytest.approx(0.4 - 0.252, abs=0.03)
    assert made.high == pytest.approx(0.4 + 0.252, abs=0.03)


@pytest.mark.parametrize(
    ("table", "holds"),
    [
        ((45, 0, 0, 5), True),
        ((44, 0, 0, 5), False),
        ((25, 25, 25, 25), False),
        ((100, 0, 0, 0), False),
        ((60, 0, 40, 0), False),
        ((0, 50, 50, 0), False),
    ],
)
def test_judge_may_count_where_enough_people_agree_more_than_by_chance(
    table: tuple[int, int, int, int], holds: bool
) -> None:
    assert calibration(labels(*table)).holds is holds


def test_mean_of_people_that_is_neither_good_nor_bad_is_no_label() -> None:
    assert calibration([(0.5, 0.9)] * 100) == UNCALIBRATED
    assert calibration([]).sentence == "uncalibrated: 0 labels"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=120))
def test_interval_holds_kappa_and_stays_in_range(scores: list[tuple[float, float]]) -> None:
    made = calibration(scores)
    assert -1.0 <= made.low <= made.high <= 1.0
    assert -1.0 <= made.kappa <= 1.0
    assert not made.holds or (made.labels >= MIN_LABELS and made.low > 0)


@pytest.mark.parametrize(("base", "right", "kappa"), [(0.5, 0.8, 0.6), (0.8, 0.95, 0.848), (0.8, 0.5, 0.0)])
def test_interval_covers_kappa_nearly_always(base: float, right: float, kappa: float) -> None:
    """Of 400 sets of 60 labels from a judge that is right so often, at most 7 % lie beside the true kappa."""
    draw = Random(7)

    def drawn() -> list[tuple[float, float]]:
        people = [draw.random() < base for _ in range(60)]
        return [(float(good), float(good if draw.random() < right else not good)) for good in people]

    sets = [calibration(drawn()) for _ in range(400)]
    covered = sum(made.low <= kappa <= made.high for made in sets)
    assert covered >= 0.93 * len(sets)
    assert kappa > 0 or sum(made.holds for made in sets) <= 0.05 * len(sets)
