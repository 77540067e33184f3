"""The report on mining lists what was missed as missed."""

from __future__ import annotations

from collections import Counter

from tools.analyst.report import SIZES, Tally, page

NAMES = ("task_type", "term", "language", "model", "tool")


def tallies(reporting: int, false_share: float, named: int, worlds: int = 200) -> dict[int, Tally]:
    counts, recalled = Counter(dict.fromkeys(NAMES, named)), [named / worlds] * worlds
    return {
        size: Tally(worlds, reporting, [false_share] * worlds, 100, 200, recalled, counts, [True]) for size in SIZES
    }


def targets(text: str, end: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(f"| {end} |")]


def test_page_states_targets_that_are_met() -> None:
    text = page(tallies(1, 0.0, 0), tallies(200, 0.09, 180), [0.5], (4, [0.0]), (59.0, 0.9))
    assert len(targets(text, "met")) == 11


def test_page_states_targets_that_are_missed() -> None:
    text = page(tallies(20, 0.0, 0), tallies(200, 0.11, 170), [0.5], (4, [0.0]), (61.0, 1.1))
    assert len(targets(text, "**missed**")) == 11


def test_page_judges_nothing_by_too_few_worlds() -> None:
    text = page(tallies(0, 0.0, 0, 1), tallies(1, 0.0, 1, 1), [0.5], (4, [0.0]), (59.0, 0.9))
    assert len(targets(text, "too few worlds to tell")) == 9
