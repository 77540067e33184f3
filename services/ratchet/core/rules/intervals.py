"""What a count can show: 95 % intervals of a share, and of the difference of two shares of the same cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927); all of it without any trial. `successes` may count a tie as one
    half.
    """
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    denominator = 1 + Z95**2 / trials
    centre = (share + Z95**2 / (2 * trials)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / trials + Z95**2 / (4 * trials**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a share less an earlier one of the same cases (Bonett and Price 2012).

    Each case counts 1, 0, or one half for a tie. One more gain and one more loss are added to those that there were, so
    that few cases without any change do not look like a proof that there is none.
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    count = len(changes) + 2
    gained = (sum(change for change in changes if change > 0) + 1) / count
    lost = (sum(-change for change in changes if change < 0) + 1) / count
    centre, half = gained - lost, Z95 * math.sqrt((gained + lost - (gained - lost) ** 2) / count)
    return max(-1.0, centre - half), min(1.0, centre + half)
