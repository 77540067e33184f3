"""How well scores put better answers before worse ones: the area under the ROC curve, and what it can show."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from ratchet.core.rules.intervals import Z95


def auc(better: Sequence[float], worse: Sequence[float]) -> float:
    """The chance that a better answer scores higher than a worse one (Mann and Whitney); a tie counts one half."""
    ordered = sorted(worse)
    below = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in better)
    return below / (2 * len(better) * len(worse))


def auc_interval(area: float, better: int, worse: int) -> tuple[float, float]:
    """The 95 % interval of an AUC over so many answers of each kind (Newcombe 2006, method 5; also at 0 and 1).

    It takes all answers as independent, which sides of a pair are not quite.
    """

    size = (better + worse) / 2 - 1

    def too_far(other: float) -> bool:
        # Hanley and McNeil 1982, with the mean of both sizes in place of each, as Newcombe has it.
        grown = 1 + size * ((1 - other) / (2 - other) + other / (1 + other))
        error = math.sqrt(max(0.0, other * (1 - other) * grown / (better * worse)))
        return abs(area - other) > Z95 * error

    return _edge(0.0, area, too_far), _edge(1.0, area, too_far)


def _edge(outside: float, inside: float, too_far: Callable[[float], bool]) -> float:
    """Where values begin to be too far, between one that may be and one that is not, by bisection."""
    if not too_far(outside):
        return outside
    for _ in range(50):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if too_far(middle) else (outside, middle)
    return inside
