"""Decisions have a number of their own, which their heading and their file name give."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = sorted((Path(__file__).parents[3] / "docs" / "adr").glob("*.md"))


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == sorted(set(numbers))
    for number, path in zip(numbers, DECISIONS, strict=True):
        assert re.match(rf"# {number}\. \S", path.read_text()), path.name
