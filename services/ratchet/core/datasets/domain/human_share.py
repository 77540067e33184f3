"""The least share of a snapshot's pairs that people gave, and which pairs are left when it is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

HUMAN = "human"
"""The source of what people preferred."""
_ROUNDING = 1e-9
"""A share is a decimal fraction: .07 of 100 are 7, although their product is a little more."""


def most_pairs(people: int, others: int, share: float) -> int:
    """The most pairs, of so many that people gave and so many others, of which people's are at least `share`."""
    total = people + others
    return total if share <= 0 else min(total, math.floor(people / share + _ROUNDING))


def keep_share(newest_first: Sequence[T], is_human: Callable[[T], bool], share: float, most: int) -> list[T]:
    """The newest up to `most`, as many as leave people their share; newest first.

    Where too few of the newest are people's, older ones of people take the place of the oldest of the others.
    """
    people = [one for one in newest_first if is_human(one)]
    size = min(most, most_pairs(len(people), len(newest_first) - len(people), share))
    needed = math.ceil(share * size - _ROUNDING)
    room, owed = size, needed
    kept: list[T] = []
    for pair in newest_first:
        human = is_human(pair)
        if room and (human or room > owed):
            kept.append(pair)
            room -= 1
            owed = max(0, owed - human)
    return kept
