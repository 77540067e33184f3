"""The learning report: Student's distribution as in tables, means over seeds, and a claim no safer than its seeds."""

from __future__ import annotations

import pytest

from ratchet.demo.exams import GREEDY, SAMPLED
from ratchet.demo.intervals import Proportion
from ratchet.demo.learning_tables import (
    OF_MISJUDGED,
    REJECTION,
    RLOO,
    START,
    Count,
    Measured,
    OverSeeds,
    Report,
    Setting,
    draw_tables,
    rise_of_greedy,
    student_below,
    student_quantile,
)


def measured(seed: int, method: str, cycle: int, late: int, report: int = 90) -> Measured:
    by_kind = {"refund too late": Count(late, 100), "report as wished": Count(report, 100)}
    return Measured(seed=seed, method=method, cycle=cycle, counts={GREEDY: by_kind, SAMPLED: by_kind}, valid_calls=1.0)


RUNS = [
    one
    for seed in (0, 1, 2)
    for one in (
        measured(seed, START, 0, 10),
        measured(seed, RLOO, 1, 70 + 4 * seed),
        measured(seed, REJECTION, 1, 40),
    )
]
REPORT = Report(
    setting=Setting(command="make it", machine="2 cores", versions={"torch": "1"}), recipe={"tries": 4}, measured=RUNS
)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.975, 2, 4.3027), (0.975, 5, 2.5706), (0.99, 2, 6.9646), (0.95, 30, 1.6973)],
)
def test_quantiles_are_those_of_students_table(probability: float, freedom: int, value: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, abs=1e-3)
    assert student_below(-value, freedom) == pytest.approx(1 - probability, abs=1e-5)


def test_the_mean_over_seeds_has_students_interval() -> None:
    over = OverSeeds([0.8, 0.9, 1.0])
    assert over.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert str(over) == "0.90 ± 0.25"


def test_one_seed_says_nothing_about_others() -> None:
    single = OverSeeds([0.9])
    assert (single.half_width, single.chance_above(0.2), str(single)) == (None, None, "0.90")


def test_more_seeds_make_the_same_claim_safer() -> None:
    few, many = OverSeeds([0.3, 0.34, 0.38]), OverSeeds([0.3, 0.34, 0.38] * 3)
    least, most = few.chance_above(0.2), many.chance_above(0.2)
    assert least is not None
    assert most is not None
    assert least < 0.97 < 0.99 < most


def test_the_rise_is_that_of_rloo_over_the_first_policy_of_the_same_seed() -> None:
    assert rise_of_greedy(RUNS, 1) == pytest.approx({0: 0.3, 1: 0.32, 2: 0.34})


def test_misjudged_kinds_are_counted_apart() -> None:
    assert RUNS[0].success(GREEDY) == Proportion(100, 200)
    assert RUNS[0].success(GREEDY, OF_MISJUDGED) == Proportion(10, 100)
    assert RUNS[0].success(SAMPLED, "report as wished") == Proportion(90, 100)


def test_the_tables_show_methods_side_by_side_and_every_seed() -> None:
    text = draw_tables(REPORT, least_rise=0.2, cycles=1)
    assert "| rloo, cycle 1 | 0.82 ± 0.05 | 0.80 0.82 0.84 |" in text
    assert "| rejection sampling, cycle 1 | 0.65 ± 0.00 |" in text
    assert "| refund too late * | 100 | 0.10 | 0.10 | 0.74 |" in text
    assert "Made by `make it`" in text
