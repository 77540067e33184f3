"""Pictures of curves: they rise where the curve rises, fit their width, and stand every finite value."""

from __future__ import annotations

import math

import pytest

from ratchet.cli.charts import ROWS, picture, shows_braille, thinned
from ratchet.core.rules.curves import Point

RISING = [Point(step, step / 10) for step in range(1, 11)]


def test_a_picture_in_ascii_shows_the_way_of_a_curve() -> None:
    assert picture(RISING, 20, braille=False) == [
        "  1 |            ***",
        "    |         ***",
        "    |      ***",
        "    |   ***",
        "0.1 |***",
        "     step 1       10",
    ]


@pytest.mark.parametrize("columns", [20, 56, 100])
def test_a_picture_has_the_columns_that_it_may_have(columns: int) -> None:
    for braille in (True, False):
        drawn = picture(RISING, columns, braille=braille)
        assert len(drawn) == ROWS + 1
        assert max(map(len, drawn)) <= columns
        assert all(line.isascii() for line in drawn) is not braille
    assert {chr(0x2800 + bits) for bits in range(1, 256)} & set("".join(picture(RISING, columns, braille=True)))


@pytest.mark.parametrize(
    "values",
    [[0.5], [0.5, 0.5], [1.7e308, -1.7e308], [5e-324, 0.0], [1e-300, 1e300, 1.0]],
    ids=["one", "equal", "widest", "smallest", "far apart"],
)
def test_every_finite_value_has_a_place(values: list[float]) -> None:
    points = [Point(2**53 * step, value) for step, value in enumerate(values)]
    for braille in (True, False):
        assert len(picture(points, 30, braille=braille)) == ROWS + 1


def test_a_long_curve_keeps_its_extremes() -> None:
    points = [Point(step, math.sin(step)) for step in range(10_000)]
    points[4321] = Point(4321, 99.0)
    few = thinned(points, 50)
    assert len(few) <= 200
    assert Point(4321, 99.0) in few
    assert [point.step for point in few] == sorted(point.step for point in few)


@pytest.mark.parametrize(
    ("encoding", "environment", "shown"),
    [
        ("utf-8", {}, True),
        ("UTF-8", {"LANG": "de_DE.UTF-8", "TERM": "xterm-256color"}, True),
        ("utf-8", {"LC_ALL": "C.UTF-8"}, True),
        ("ascii", {}, False),
        ("iso-8859-1", {"TERM": "xterm"}, False),
        ("utf-8", {"TERM": "dumb"}, False),
        ("utf-8", {"TERM": "linux"}, False),
        ("utf-8", {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, False),
        ("utf-8", {"LC_ALL": "", "LANG": "POSIX"}, False),
    ],
)
def test_which_terminals_get_braille(encoding: str, environment: dict[str, str], shown: bool) -> None:
    assert shows_braille(encoding, environment) is shown
