"""When two texts are the same to their readers."""

from __future__ import annotations

import pytest

from ratchet.core.rules.texts import MOST_MARKS, same_form


@pytest.mark.parametrize(
    ("one", "other"),
    [("Caf\u00e9", "cafe\u0301"), ("STRASSE", "stra\u00dfe"), (" a\n\tb ", "a b"), ("\ufb01ve", "FIVE")],
)
def test_spelling_case_and_spaces_make_no_difference(one: str, other: str) -> None:
    assert same_form(one) == same_form(other)


def test_marks_of_real_words_count() -> None:
    assert same_form("re\u0301sume\u0301") != same_form("resume")


def test_a_long_run_of_marks_costs_no_more_than_a_short_one() -> None:
    long = "a" + "\u0300\u0316" * 200_000
    assert same_form(long) == same_form("a" + "\u0300\u0316" * (MOST_MARKS // 2))
