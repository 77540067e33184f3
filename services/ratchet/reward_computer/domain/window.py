"""A trailing window of numbers and what it says about the next one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stats:
    """Moments and bounds of a window; `std` is the population's. All 0 while the window is empty."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0


NOTHING_YET = Stats()


def stats_of(values: Sequence[float]) -> Stats:
    """Summarise a window."""
    if not values:
        return NOTHING_YET
    least, greatest = min(values), max(values)
    # Rounding must not give equal values a deviation, nor a mean outside their range.
    mean = min(greatest, max(least, math.fsum(values) / len(values)))
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)) if least < greatest else 0.0
    return Stats(len(values), mean, std, least, greatest)
