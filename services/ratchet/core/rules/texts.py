"""When two texts are the same to their readers."""

from __future__ import annotations

import unicodedata

MOST_MARKS = 30
"""Combining marks after one letter that count: the limit of Unicode's stream-safe text. Longer runs take quadratic time
to be put in order, and no language has them."""


def same_form(text: str) -> str:
    """`text` in one form of letters (NFKC), without letter case, each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", _readable(text)).casefold().split())


def _readable(text: str) -> str:
    if text.isascii():
        return text
    kept: list[str] = []
    marks = 0
    for letter in text:
        marks = marks + 1 if unicodedata.combining(letter) else 0
        if marks <= MOST_MARKS:
            kept.append(letter)
    return "".join(kept)
