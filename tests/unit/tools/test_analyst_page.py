"""The report on mining lists what was missed as missed."""

from __future__ import annotations

from collections import Counter

from tools.analyst.report import SIZES, Tally, page

NAMES = ("task_type", "term", "language", "model", "tool")


def tallies(reporting: int, false_share: float, named: int) -> dict[int, Tally]:
    counts = Counter(dict.fromkeys(NAMES, named))
    return {size: Tally(20, reporting, [false_share] * 20, 100, 200, counts, [True]) for size in SIZES}


def targets(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(("| met |", "| **missed** |"))]


def test_page_states_targets_that_are_met() -> None:
    text = page(tallies(1, 0.0, 0), tallies(20, 0.09, 18), [0.5], (4, [0.0]), (59.0, 0.9))
    assert len(targets(text)) == 11
    assert all(line.endswith("| met |") for line in targets(text))


def test_page_states_targets_that_are_missed() -> None:
    text = page(tallies(2, 0.0, 0), tallies(20, 0.11, 17), [0.5], (4, [0.0]), (61.0, 1.1))
    assert len(targets(text)) == 11
    assert all(line.endswith("| **missed** |") for line in targets(text))
