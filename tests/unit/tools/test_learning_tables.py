"""The learning report: Student's distribution as in tables, means over seeds, and a claim no safer than its seeds."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import (
    ALGORITHMS,
    OF_MISJUDGED,
    OVERALL,
    REJECTION,
    RLOO,
    SEEDS,
    Count,
    Measured,
    Result,
    add_result,
    read_results,
)
from tools.learning.tables import ClaimedRise, OverSeeds, draw_tables, safety, student_below, student_quantile


def measured(cycle: int, late: int, report: int = 90) -> Measured:
    by_kind = {"refund too late": Count(late, 100), "report as wished": Count(report, 100)}
    return Measured(cycle=cycle, counts={GREEDY: by_kind, SAMPLED: by_kind}, valid_calls=1.0)


def result(seed: int, variant: str, *late: int, **changes: Any) -> Result:
    """A cell of the algorithms whose policies solved so many late refunds."""
    plain: dict[str, Any] = {"experiment": "algorithms", "variant": variant, "seed": seed, "recipe": {"passes": 4}}
    exams = [measured(cycle, solved) for cycle, solved in enumerate(late)]
    made = {"versions": {"torch": "1"}, "learner": f"digest of {seed}", "machine": "2 cores", "seconds": 60}
    return Result(**plain | made | {"measured": exams} | changes)


RESULTS = [result(1, REJECTION, 10, 40), *(result(seed, RLOO, 10, 70 + 4 * seed) for seed in SEEDS)]
CLAIM = ClaimedRise(run="`a run`", experiment=ALGORITHMS, variant=RLOO, kinds=OVERALL, cycles=1, tickets=200, least=0.2)


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
    assert safety([one for one in RESULTS if one.seed == 1], CLAIM).another_seed is None


def test_more_seeds_say_more_about_another_one() -> None:
    few, many = (OverSeeds([0.3, 0.34, 0.38] * times).lower_bound(0.99) for times in (1, 3))
    assert few == pytest.approx(0.34 - 6.9646 * 0.04 * (4 / 3) ** 0.5, abs=1e-4)
    assert many is not None
    assert few is not None
    assert few < 0.2 < many


def test_a_rise_is_that_of_rloo_over_the_first_policy_of_the_same_seed() -> None:
    assert safety(RESULTS, CLAIM).over.values == pytest.approx([0.3, 0.32, 0.34])
    assert safety(RESULTS, replace(CLAIM, kinds=OF_MISJUDGED)).over.values == pytest.approx([0.6, 0.64, 0.68])


def test_rise_is_safe_that_the_worst_seed_shows_in_99_of_100_exams() -> None:
    draw = random.Random(7)
    for tickets in (50, 200):
        safe = safety(RESULTS, replace(CLAIM, tickets=tickets)).safe
        shown = [rise_in_an_exam(0.5, 0.8, tickets, draw) for _ in range(4000)]
        assert 0.98 < statistics.fmean(rise > safe for rise in shown) < 0.998


def rise_in_an_exam(first: float, last: float, tickets: int, draw: random.Random) -> float:
    """One difference of two measured rates."""
    solved = sum((draw.random() < last) - (draw.random() < first) for _ in range(tickets))
    return solved / tickets


def test_refused_training_is_named_with_its_reason_in_a_measured_cell() -> None:
    refused = result(2, "ppo", 10, refused="cycle 1: too far off-policy")
    text = draw_tables([*RESULTS, refused], [])
    assert "- refused: ppo, seed 2: cycle 1: too far off-policy" in text
    assert "algorithms/ppo, seeds 0, 1;" in text


def test_a_cell_is_read_back_from_its_line_which_it_alone_has(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    again = msgspec.structs.replace(RESULTS[0], seconds=RESULTS[0].seconds + 1)
    for measured in (RESULTS[1], RESULTS[0], again):
        add_result(file, measured)
    assert read_results(file) == [again, RESULTS[1]]
    assert len(file.read_bytes().splitlines()) == 2
