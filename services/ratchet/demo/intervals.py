"""Proportions with their Wilson interval (Wilson 1927): how sure a measured success rate is."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z_95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`successes` out of `trials` (at least one)."""

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials or self.trials == 0:
            raise ValueError(f"{self.successes} of {self.trials} is no proportion")

    @property
    def rate(self) -> float:
        """The share of successes."""
        return self.successes / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval: unlike rate ± 2 errors it stays in [0, 1] and holds for rates near its ends."""
        n, p, z = self.trials, self.rate, Z_95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def is_above(self, other: Proportion) -> bool:
        """Whether this interval lies wholly above the other's."""
        return self.interval[0] > other.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.2f} [{low:.2f}, {high:.2f}]"
