"""How well scores put better answers before worse ones: the area under the ROC curve, and what it can show."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from ratchet.core.rules.intervals import Z95


def auc(better: Sequence[float], worse: Sequence[float]) -> float:
    """The chance that a better answer scores higher than a worse one (Mann and Whitney); a tie counts one half."""
    ordered = sorted(worse)
    below = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in better)
    return below / (2 * len(better) * len(worse))


def auc_over_tasks(
    scores: Sequence[float], is_better: Sequence[bool], tasks: Sequence[Hashable]
) -> tuple[float, tuple[float, float]]:
    """The AUC of answers, of which those of one task are not independent, and its 95 % interval.

    Obuchowski (1997, Nonparametric analysis of clustered ROC curve data) has the variance over tasks. By how much it is
    above that of independent answers (DeLong 1988), the answers count as fewer: `auc_interval` is of so many, and of
    one for each task where nothing varies. Both kinds of answers are there.
    """
    answers = list(zip(scores, is_better, tasks, strict=True))
    sides = [sorted(score for score, better, _ in answers if better is side) for side in (True, False)]
    area = auc(*sides)
    # Of each answer the share of the other side that it is rightly above or below, less the area.
    apart: tuple[dict[Hashable, list[float]], ...] = (defaultdict(list), defaultdict(list))
    for score, better, task in answers:
        other = sides[better]
        below = (bisect_left(other, score) + bisect_right(other, score)) / (2 * len(other))
        apart[not better][task].append((below if better else 1 - below) - area)
    sizes = [len(side) for side in sides]
    of_tasks = [len(side) for side in apart]
    alone = sum(_variance([value for own in side.values() for value in own]) for side in apart)
    if min(of_tasks) < 2 or not alone:
        return area, auc_interval(area, *of_tasks)
    sums = [
        {task: math.fsum(own) / size for task, own in side.items()} for side, size in zip(apart, sizes, strict=True)
    ]
    within = sum(len(side) / (len(side) - 1) * math.fsum(each**2 for each in side.values()) for side in sums)
    both, every = sums[0].keys() & sums[1].keys(), sums[0].keys() | sums[1].keys()
    across = len(every) / (len(every) - 1) * math.fsum(sums[0][task] * sums[1][task] for task in both)
    design = max(1.0, (within + 2 * across) / alone)
    return area, auc_interval(area, *(size / design for size in sizes))


def _variance(values: Sequence[float]) -> float:
    """Of the mean of independent values whose mean is 0."""
    return math.fsum(value**2 for value in values) / (len(values) * max(1, len(values) - 1))


def auc_interval(area: float, better: float, worse: float) -> tuple[float, float]:
    """The 95 % interval of an AUC over so many answers of each kind (Newcombe 2006, method 5; also at 0 and 1).

    It takes all answers as independent, which sides of a pair are not quite. They need not be whole numbers.
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
