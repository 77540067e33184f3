"""What the learning report says of public tasks: gains with their intervals, what did not improve, what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import REJECTION, RLOO, Count, Measured, Result
from tools.learning.public_tables import Gain, draw_public, gain_of


def exam(cycle: int, greedy: str, sampled: str = "0000") -> Measured:
    """An exam of four tasks, two of each kind."""
    solved = {GREEDY: greedy, SAMPLED: sampled}
    counts = {
        mode: {"nim": Count(each[:2].count("1"), 2), "number": Count(each[2:].count("1"), 2)}
        for mode, each in solved.items()
    }
    return Measured(
        cycle=cycle,
        counts=counts,
        valid_calls=None,
        figures={"played": 256, "sampled_tokens": 1000, "samples": 250, "step_tokens": 900} if cycle else {},
        solved=solved,
    )


def cell(variant: str, seed: int, *greedy: str, **changes: Any) -> Result:
    made: dict[str, Any] = {
        "experiment": "games",
        "variant": variant,
        "seed": seed,
        "recipe": {"passes": 1},
        "versions": {"torch": "1"},
        "learner": "digest",
        "machine": "2 cores",
        "seconds": 600,
        "measured": [exam(cycle, solved) for cycle, solved in enumerate(greedy)],
        "base": exam(0, "0000"),
        "load": 1.5,
    }
    return Result(**made | changes)


def test_a_gain_of_one_seed_has_its_interval_over_tasks() -> None:
    gain = Gain.of([("0" * 100, "1" * 20 + "0" * 80)])
    assert gain.mean == pytest.approx(0.2)
    assert gain.interval == pytest.approx((0.2 - 1.96 * 0.04, 0.2 + 1.96 * 0.04), abs=0.01)
    assert gain.verdict == "better"
    assert Gain.of([("1" * 20, "1" * 10 + "0" * 10)]).verdict == "worse"
    assert Gain.of([("0011", "0111")]).verdict == "not shown"


def test_tasks_without_any_change_are_no_proof_that_there_is_none() -> None:
    assert str(Gain.of([("1" * 40, "1" * 40)])) == "+0.00 [-0.07, +0.07]"
    assert Gain.of([("1" * 40, "1" * 40)] * 3).interval == Gain.of([("1" * 40, "1" * 40)]).interval
    assert Gain.of([("0", "1")]).verdict == "not shown"


def test_a_gain_of_several_seeds_is_as_unsure_as_they_are_apart() -> None:
    start, half, none = "0" * 400, "1" * 200 + "0" * 200, "0" * 400
    assert Gain.of([(start, half)] * 3).verdict == "better"
    apart = Gain.of([(start, half), (start, none), (start, none)])
    assert apart.by_seed == [0.5, 0.0, 0.0]
    assert apart.interval[0] == 0.0
    assert apart.verdict == "not shown"


def test_a_variants_gain_is_of_each_seed_over_its_own_start() -> None:
    cells = [cell(RLOO, seed, "0001", *later) for seed, later in enumerate((["0011"], ["0111"], ["0011"]))]
    assert gain_of(cells, 1, GREEDY).by_seed == [0.25, 0.5, 0.25]


def test_rloo_stands_beside_rejection_sampling_of_the_same_seeds() -> None:
    cells = [cell(RLOO, 0, "0001", "0011", "0111"), cell(REJECTION, 0, "0001", "0001", "0011")]
    text = draw_public([*cells, cell(REJECTION, 1, "0001", "0001", "0011")])
    assert "- rloo beside rejection sampling: greedy *not shown*, +0.25" in text


def test_a_recipe_names_all_that_cells_had_where_they_differ() -> None:
    cells = [cell(RLOO, seed, "0001", "0011", recipe={"bits of a number": bits}) for seed, bits in enumerate((32, 16))]
    assert "Recipe: bits of a number 16 or 32; 2 cycles" in draw_public(cells)


def test_what_was_not_measured_is_planned() -> None:
    text = draw_public([cell(RLOO, 0, "0001", "0011", "0111")])
    assert "| 5 of 6 |" in text.partition("### Planned")[2]


def test_a_refused_training_stands_with_its_reason() -> None:
    text = draw_public([cell(RLOO, 0, "0011", refused="cycle 1: it diverged")])
    assert "- refused: rloo, seed 0: cycle 1: it diverged" in text
