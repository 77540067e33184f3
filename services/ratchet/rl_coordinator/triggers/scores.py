"""Whether a policy serves worse than it did: a drop that is large, and larger than chance makes."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z = 3.3
"""Of the one-sided interval of a drop: by chance alone one look in 2,000 shows one. A window is looked at often."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rewards of a time, one of each task: the mean of its tries."""

    n: int
    """Tasks."""
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest rewards of a policy against its earlier ones."""

    before: Sample
    recent: Sample
    drop: float
    """Before minus recent."""
    least: float
    """The drop is at least this, or chance made it."""

    @property
    def in_words(self) -> str:
        """Both means, with their numbers."""
        before, recent = self.before, self.recent
        return f"{before.mean:.3f} of {before.n} tasks, now {recent.mean:.3f} of {recent.n}"

    def problem(self, allowed: float, minimum: int) -> str | None:
        """The degradation in words; None while there is none, or too little is known."""
        is_known = min(self.before.n, self.recent.n) >= minimum
        if not (is_known and self.drop >= allowed and self.least > 0):  # a comparison with what is no number is false
            return None
        return (
            f"its mean reward fell by {self.drop:.3f} (at least {self.least:.3f}; {allowed:g} is allowed):"
            f" {self.in_words}"
        )


def compare(before: Sample, recent: Sample) -> Comparison:
    """The difference of means with its bound; variances count one extreme reward more than there was."""
    drop = before.mean - recent.mean
    error = sum((part.variance + 1 / part.n) / part.n for part in (before, recent) if part.n)
    return Comparison(before, recent, drop, drop - Z * math.sqrt(error))
