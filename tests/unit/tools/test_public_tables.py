"""What the learning report says of public tasks: gains with their intervals, what did not improve, what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import RLOO, Count, Measured, Result
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


def test_a_gain_of_one_seed_is_of_pairs_over_tasks() -> None:
    gain = Gain.over_tasks("0011", "0111")
    assert (gain.mean, gain.half_width) == (0.25, pytest.approx(1.959964 * 0.5 / 2))
    assert gain.verdict == "not shown"
    assert Gain.over_tasks("0" * 20, "1" * 10 + "0" * 10).verdict == "better"
    assert Gain.over_tasks("1" * 20, "1" * 10 + "0" * 10).verdict == "worse"


def test_a_gain_of_several_seeds_is_over_seeds() -> None:
    cells = [cell(RLOO, seed, "0001", *later) for seed, later in enumerate((["0011"], ["0111"], ["0011"]))]
    gain = gain_of(cells, 1, GREEDY)
    assert gain.mean == pytest.approx(1 / 3)
    assert gain.half_width == pytest.approx(4.3027 * 0.14434 / 3**0.5, abs=1e-3)


def test_a_refused_training_stands_with_its_reason() -> None:
    text = draw_public([cell(RLOO, 0, "0011", refused="cycle 1: it diverged")])
    assert "- refused: rloo, seed 0: cycle 1: it diverged" in text
