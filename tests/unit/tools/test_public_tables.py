"""What the learning report says of public tasks: gains with their intervals, what did not improve, what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import PUBLIC, REJECTION, RLOO, Count, Measured, Result, all_cells, is_public
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


def test_what_did_not_improve_is_named_so_beside_rejection_sampling() -> None:
    text = draw_public([cell(RLOO, 0, "0011", "0011", "0011"), cell(REJECTION, 0, "0011", "0111", "0001")])
    assert "- rloo: not shown, greedy +0.00 ± 0.00 (1 seed; 10 minutes, load 1.5)" in text
    assert "- rejection sampling: not shown, greedy -0.25" in text
    assert "| SmolLM2 | 1 | 0.00 [" in text
    assert "| rloo, cycle 2 | 1 | 0.50 [" in text
    assert "| 512 | 2,000 | 500 | 1,800 |" in text


def test_a_refused_training_stands_with_its_reason() -> None:
    text = draw_public([cell(RLOO, 0, "0011", refused="cycle 1: it diverged")])
    assert "- refused: rloo, seed 0: cycle 1: it diverged" in text


def test_what_was_not_measured_is_named() -> None:
    text = draw_public([cell(RLOO, 0, "0011", "0011", "0011")])
    assert "games/rloo/0," not in text
    assert "games/rloo/1," in text
    assert text.count("Not measured.") == len(PUBLIC) - 1
    everything = [str(one) for one in all_cells() if is_public(one)]
    assert all(name in draw_public([]) for name in everything)
