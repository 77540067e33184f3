"""How far people agree with a judge: Cohen's kappa (1: always, 0: no more than by chance), with an interval.

Kappa is that of Cohen (A Coefficient of Agreement for Nominal Scales, 1960); the interval is its large-sample one
(Fleiss, Cohen and Everitt, Large Sample Standard Errors of Kappa and Weighted Kappa, 1969) of the table with one half
added to each cell, so that a table without any disagreement does not look like a proof that there is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from ratchet.bus.message import Value
from ratchet.core.rules.intervals import Z95

MIN_LABELS = 50
"""With fewer labels of people a judge is uncalibrated, whatever they say."""
GOOD_FROM = 0.5
"""Scores from here on count as good: those of the judge, and the mean of people's."""


class Calibration(Value, frozen=True, kw_only=True):
    """A judge against people, on trajectories that both have seen."""

    labels: int
    """Trajectories."""
    agreed: int
    kappa: float
    low: float
    high: float
    """The 95 % interval of kappa."""

    @property
    def holds(self) -> bool:
        """Whether the judge may have weight: enough people agree with it more than by chance."""
        return self.labels >= MIN_LABELS and self.low > 0

    @property
    def sentence(self) -> str:
        """In words."""
        measured = f"kappa {self.kappa:.2f} ({self.low:.2f} to {self.high:.2f}) on {self.labels} labels of people"
        if self.holds:
            return measured
        return f"uncalibrated: {measured}" if self.labels >= MIN_LABELS else f"uncalibrated: {self.labels} labels"


UNCALIBRATED = Calibration(labels=0, agreed=0, kappa=0.0, low=-1.0, high=1.0)


def calibration(labels: Iterable[tuple[float, float]]) -> Calibration:
    """From the scores of people and judge on each trajectory, both 0..1; a mean that is neither good nor bad says
    nothing."""
    table = Counter((people > GOOD_FROM, judge >= GOOD_FROM) for people, judge in labels if people != GOOD_FROM)
    number = table.total()
    if not number:
        return UNCALIBRATED
    kappa, _ = _kappa(table)
    padded = Counter({cell: table[cell] + 0.5 for cell in ((a, b) for a in (False, True) for b in (False, True))})
    centre, deviation = _kappa(padded)
    half = Z95 * deviation
    agreed = table[True, True] + table[False, False]
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Calibration(labels=number, agreed=agreed, kappa=kappa, low=low, high=high)


def _kappa(table: Counter[tuple[bool, bool]]) -> tuple[float, float]:
    """Kappa and its standard error. 0 where one answer is the only one: nothing tells agreement from habit then."""
    number = table.total()
    share = {(a, b): table[a, b] / number for a in (False, True) for b in (False, True)}
    row = {a: share[a, False] + share[a, True] for a in (False, True)}
    column = {b: share[False, b] + share[True, b] for b in (False, True)}
    observed = share[True, True] + share[False, False]
    by_chance = sum(row[side] * column[side] for side in (False, True))
    if by_chance >= 1.0:
        return 0.0, 0.0
    kappa = (observed - by_chance) / (1 - by_chance)
    agreeing = sum(share[i, i] * (1 - (row[i] + column[i]) * (1 - kappa)) ** 2 for i in (False, True))
    apart = (1 - kappa) ** 2 * sum(share[i, j] * (column[i] + row[j]) ** 2 for i, j in ((True, False), (False, True)))
    variance = (agreeing + apart - (kappa - by_chance * (1 - kappa)) ** 2) / (number * (1 - by_chance) ** 2)
    return kappa, math.sqrt(max(0.0, variance))
