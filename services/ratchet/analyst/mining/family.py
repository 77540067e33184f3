"""How many false findings are tolerated: within one run, and over the runs of a horizon.

Within a run p-values are compared as Benjamini and Hochberg (1995) do. Over runs the level is spent as LOND does
(Javanmard and Montanari, 2015: levels based on the number of discoveries), each run being a batch of tests: of N runs
that fit the horizon each has `RATE / N`, and a hypothesis is borne out where `p <= RATE / N * (D + R) / m`, with D
discoveries before this run, R in it, and m tests in it. Each test then adds at most `RATE / N / m` to the expected
share of false discoveries at the horizon's end, all together `RATE`. To give a run Benjamini and Hochberg's procedure
at the level `RATE / N * (D + 1)` would not: where both D and R are large it exceeds that sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ratchet.analyst.mining.base import Floats, Mask

RATE = 0.05
"""Expected share of false discoveries among those of a horizon."""
HORIZON_S = 90 * 86_400
"""After it the level is spent anew."""
ON_DEMAND = 100
"""Runs on demand that fit a horizon beside those by the clock."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """What the runs of a role have spent."""

    started_at: float
    """Seconds since 1970."""
    period_s: float
    """Between two runs by the clock."""
    runs: int = 0
    discoveries: int = 0
    """Patterns that opened; one that is seen again is no discovery."""

    @property
    def fits(self) -> int:
        """Runs that the level is divided among."""
        return int(HORIZON_S // self.period_s) + ON_DEMAND

    def level(self) -> float:
        """`alpha` of the next run; 0 where all are spent: such a run bears out nothing."""
        return RATE / self.fits if self.runs < self.fits else 0.0

    def at(self, now: float) -> Horizon:
        """This horizon, or the next one where it has ended. A clock that went back starts none."""
        ended = now >= self.started_at + HORIZON_S
        return replace(self, started_at=now, runs=0, discoveries=0) if ended else self

    def after(self, discoveries: int) -> Horizon:
        return replace(self, runs=self.runs + 1, discoveries=self.discoveries + discoveries)


def borne_out(p_values: Floats, alpha: float, discoveries: int = 0) -> Mask:
    """Which hypotheses (m,) hold at `alpha`, a run's level, after `discoveries` of earlier runs of the horizon."""
    count = len(p_values)
    ordered = np.sort(p_values)
    ranks = np.arange(1, count + 1)
    passing = np.flatnonzero(ordered <= alpha * (discoveries + ranks) / max(1, count))
    if alpha <= 0 or not len(passing):
        return np.zeros(count, dtype=np.bool_)
    return p_values <= ordered[passing[-1]]
