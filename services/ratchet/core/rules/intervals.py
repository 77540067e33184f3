"""What a count can show: 95 % intervals of a share, a mean, and the difference of two shares of the same cases."""

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


SAME = 1e-9
"""Values whose standard deviation is at most that share of their size differ by rounding alone."""
T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95 % quantiles of Student's t distribution with 1 to 30 degrees of freedom."""


def mean_interval(mean: float, variance: float, count: int) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent values (Student 1908); None for fewer than two, and for values that
    are all equal: they show no spread, so that nothing is known of how far the mean is off.

    `variance`: of the sample, divided by `count - 1`.
    """
    if count < 2 or math.sqrt(variance) <= SAME * max(1.0, abs(mean)):
        return None
    quantile = T95[count - 2] if count - 2 < len(T95) else Z95 + (Z95**3 + Z95) / (4 * (count - 1))
    half = quantile * math.sqrt(variance / count)
    return mean - half, mean + half


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
