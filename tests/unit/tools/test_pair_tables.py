"""The table of few real pairs: tasks are the observations, as the file of what was measured holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.learning.pairs import (
    DPO,
    REWARD_MODEL,
    Baselines,
    Cell,
    Fold,
    HeldOutPair,
    Pairs,
    Rule,
    draw_pairs,
    read_pairs,
    task_interval,
    write_pairs,
)


def cell(algorithm: str, seed: int, *folds: Fold) -> Cell:
    return Cell(
        algorithm=algorithm, seed=seed, recipe={"folds": 2}, versions={"torch": "1"}, seconds=60, folds=list(folds)
    )


def test_pairs_of_one_task_are_one_observation() -> None:
    apart = [(f"t{number}", float(number % 4 > 0)) for number in range(40)]
    together = [(task, right) for task, right in apart for _ in range(5)]
    assert task_interval(together) == task_interval(apart)
    low, high = task_interval(apart)
    # Wilson's interval of 30 of 40 is 0.60 to 0.86.
    assert (low, high) == (pytest.approx(0.60, abs=0.03), pytest.approx(0.86, abs=0.03))


def test_the_table_shows_what_the_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "pairs.json"
    assert draw_pairs(file) is None
    baselines = Baselines("somewhere", [Rule("longer wins", [("a", 1.0), ("b", 0.5)])])
    preferred = Fold([HeldOutPair("a", after=-1.0, before=-2.0)], 1.0), Fold([HeldOutPair("b", 1.0, 2.0)], 0.5)
    scored = Fold([HeldOutPair("a", after=0.5)], 1.0, auc=0.75), Fold([HeldOutPair("b", after=0.25)], 1.0, auc=0.25)
    cells = [cell(DPO, 0, *preferred), cell(REWARD_MODEL, 0, *scored)]
    write_pairs(file, Pairs(baselines, cells))
    assert read_pairs(file) == Pairs(baselines, cells)
    drawn = draw_pairs(file)
    assert drawn is not None
    lines = drawn.splitlines()
    assert "| longer wins | 0.75 | 0.50 to 1.00 |  |" in lines
    assert "| `dpo`: chosen side likelier, after | 0.50 | 0.00 to 1.00 |  |" in lines
    assert "| `dpo`: win rate against the reference | 0.50 | 0.00 to 1.00 |  |" in lines
    assert "| `reward_model`: chosen side has the higher reward | 1.00 | 1.00 to 1.00 |  |" in lines
    assert "2 pairs of 2 tasks from somewhere" in drawn
    assert "dpo 0.75, reward_model 1.00. The mean AUC of a reward model's folds is 0.50." in drawn
