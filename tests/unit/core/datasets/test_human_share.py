"""People's share of the pairs: kept as asked, with as many pairs as that leaves, the newest first."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from ratchet.core.datasets.domain.pairs import keep_share, most_pairs


def kept(newest_first: str, share: float, most: int = 100) -> str:
    """Of pairs written as letters: `h` is a person's."""
    return "".join(keep_share(newest_first, lambda one: one == "h", share, most))


@pytest.mark.parametrize(
    ("pairs", "share", "most", "result"),
    [
        ("hhdd", 0.5, 100, "hhdd"),
        ("dddhhhh", 0.8, 100, "dhhhh"),
        ("dddd", 0.8, 100, ""),
        ("dddd", 0.0, 3, "ddd"),
        ("hdddhh", 0.5, 4, "hddh"),
        ("ddddhh", 1.0, 100, "hh"),
        ("h" * 7 + "d" * 200, 0.07, 100, "h" * 7 + "d" * 93),
    ],
)
def test_people_keep_their_share(pairs: str, share: float, most: int, result: str) -> None:
    assert kept(pairs, share, most) == result


@given(st.text("hd", max_size=40), st.integers(0, 100), st.integers(1, 50))
def test_no_larger_snapshot_would_keep_the_share(pairs: str, percent: int, most: int) -> None:
    result, people = kept(pairs, percent / 100, most), pairs.count("h")
    size = len(result)
    assert Fraction(percent, 100) * size <= result.count("h")
    assert size == min(most, most_pairs(people, len(pairs) - people, percent / 100))
    assert size == min(most, len(pairs)) or Fraction(percent, 100) * (size + 1) > people
