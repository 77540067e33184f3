"""The learning report: Student's distribution as in tables, means over seeds, and a claim no safer than its seeds."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import msgspec
import pytest

from ratchet.demo.exams import Proportion
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.tables import (
    OF_MISJUDGED,
    OVERALL,
    REJECTION,
    RLOO,
    START,
    ClaimedRise,
    Count,
    Measured,
    OverSeeds,
    Report,
    Setting,
    draw_tables,
    safety,
    student_below,
    student_quantile,
)


def measured(seed: int, method: str, cycle: int, late: int, report: int = 90) -> Measured:
    by_kind = {"refund too late": Count(late, 100), "report as wished": Count(report, 100)}
    return Measured(seed=seed, method=method, cycle=cycle, counts={GREEDY: by_kind, SAMPLED: by_kind}, valid_calls=1.0)


RUNS = [
    *(measured(seed, START, 0, 10) for seed in (0, 1, 2)),
    *(measured(seed, RLOO, 1, 70 + 4 * seed) for seed in (0, 1, 2)),
    measured(1, REJECTION, 1, 40),
]
REPORT = Report(
    setting=Setting(command="make it", machine="2 cores", versions={"torch": "1"}), recipe={"tries": 4}, measured=RUNS
)
CLAIM = ClaimedRise(run="`a run`", kinds=OVERALL, cycles=1, tickets=200, least=0.2)


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


def test_one_seed_shows_nothing_about_others() -> None:
    single = OverSeeds([0.9])
    assert (single.half_width, single.lower_bound(0.99), str(single)) == (None, None, "0.90")
    alone = msgspec.structs.replace(REPORT, measured=[one for one in RUNS if one.seed == 1])
    assert safety(alone, CLAIM).another_seed is None


def test_more_seeds_say_more_about_another_one() -> None:
    few, many = (OverSeeds([0.3, 0.34, 0.38] * times).lower_bound(0.99) for times in (1, 3))
    assert few == pytest.approx(0.34 - 6.9646 * 0.04 * (4 / 3) ** 0.5, abs=1e-4)
    assert many is not None
    assert few is not None
    assert few < 0.2 < many


def test_a_rise_is_that_of_rloo_over_the_first_policy_of_the_same_seed() -> None:
    assert safety(REPORT, CLAIM).over.values == pytest.approx([0.3, 0.32, 0.34])
    assert safety(REPORT, replace(CLAIM, kinds=OF_MISJUDGED)).over.values == pytest.approx([0.6, 0.64, 0.68])


def test_a_rise_is_safe_that_the_worst_seed_shows_in_99_of_100_exams_of_that_many_tickets() -> None:
    draw = random.Random(7)
    for tickets in (50, 200):
        safe = safety(REPORT, replace(CLAIM, tickets=tickets)).safe
        shown = [rise_in_an_exam(0.5, 0.8, tickets, draw) for _ in range(4000)]
        assert 0.98 < statistics.fmean(rise > safe for rise in shown) < 0.998


def rise_in_an_exam(first: float, last: float, tickets: int, draw: random.Random) -> float:
    """One difference of two measured rates."""
    solved = sum((draw.random() < last) - (draw.random() < first) for _ in range(tickets))
    return solved / tickets


def test_misjudged_kinds_are_counted_apart() -> None:
    assert RUNS[0].success(GREEDY) == Proportion(100, 200)
    assert RUNS[0].success(GREEDY, OF_MISJUDGED) == Proportion(10, 100)
    assert RUNS[0].success(SAMPLED, "report as wished") == Proportion(90, 100)


def test_the_tables_show_methods_side_by_side_and_every_seed_with_its_interval() -> None:
    text = draw_tables(REPORT, [CLAIM])
    assert "| rloo, cycle 1 (3 seeds) | 0.82 ± 0.05 |" in text
    assert "| rejection sampling, cycle 1 (1 seed) | 0.65 |" in text
    assert "| rloo, cycle 1 | 1 | 0.82 [0.76, 0.87] | 0.82 [0.76, 0.87] | 0.74 [0.65, 0.82] |" in text
    assert "| refund too late * | 100 | 0.10 | 0.10 | 0.74 |" in text
    assert "| `a run` | all kinds | 1 | 200 | 0.30 0.32 0.34 | 0.320, 0.020 | 0.195 | 0.159 | 0.2 |" in text
    assert "Made by `make it`" in text
