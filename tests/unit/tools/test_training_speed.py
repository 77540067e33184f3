"""docs/training-speed.md says what was measured, and what is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.training_speed import (
    COMPARED,
    FOLDER,
    PAGE,
    RATCHET,
    RESULTS,
    Compared,
    Report,
    Result,
    documents,
    page,
)

ROOT = Path(__file__).parents[3]


def test_page_and_pictures_are_made_from_the_results() -> None:
    made = documents(ROOT)
    assert {path: (ROOT / path).read_text() for path in made} == made
    assert {path.name for path in (ROOT / FOLDER).iterdir()} == {path.name for path in made if path != PAGE} | {
        RESULTS.name
    }


def report(theirs: list[float], peak: float, *, shared: bool = True) -> Report:
    """Ratchet takes a second and 100 MiB."""
    ways = [
        Compared("sft", RATCHET, [1.0] * len(theirs), [100.0] * len(theirs)),
        Compared("sft", "trl", theirs, [peak] * len(theirs)),
    ]
    return Report("Llama", {"torch": "2"}, [Result(COMPARED, 1, 1.0, shared, 4, 10, 20, 60, 30, ways)])


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (report([1.4, 1.5, 9.0], 100.0), []),
        (report([1.4, 1.4, 9.0], 100.0), ["speed beside trl, one beginning: 1.40 (at least 1.5)"]),
        (report([1.4], 100.0, shared=False), []),
        (report([1.1], 100.0, shared=False), ["speed beside trl, no common beginning: 1.10 (at least 1.2)"]),
        (report([2.0], 80.0), ["memory beside trl, one beginning: 1.25 (at most 1.0)"]),
    ],
)
def test_a_floor_is_missed_by_the_median_round(measured: Report, missed: list[str]) -> None:
    assert measured.missed() == missed
    assert all(line in page(measured) for line in missed)
    assert ("All floors hold." in page(measured)) == (not missed)
