"""How many false findings are tolerated: within one run, and over the runs of a horizon.

Within a run p-values are compared as Benjamini and Hochberg (1995) do. Over runs the level is spent as LOND does
(Javanmard and Montanari, 2015: levels based on the number of discoveries), each run being a batch of tests. Of N runs
that fit a horizon each may spend `alpha`, the Nth part of the rate of false discoveries that is tolerated, and a
hypothesis is borne out where `p <= alpha * (D + R) / m`, with D discoveries before this run, R in it, m tests in it.
Each true null hypothesis then adds at most `alpha / m` to the expected share of false discoveries at the horizon's end:
all together the rate. Benjamini and Hochberg's procedure at the level `alpha * (D + 1)` has no such sum: where D and R
are both large it bears out more.

What LOND assumes is that a run's p-values are uniform or larger whatever was discovered before. Windows of runs that
follow one another share no trajectory, and the parts of the subjects are the same: a subject whose luck lasts is met
again by the same test. Where all hypotheses of a horizon are null the rate holds without that: by the sum of the runs.
"""

from __future__ import annotations

import numpy as np

from ratchet.analyst.mining.base import Floats, Mask


def borne_out(p_values: Floats, alpha: float, discoveries: int = 0) -> Mask:
    """Which hypotheses (m,) hold at `alpha`, a run's level, after `discoveries` of earlier runs of the horizon."""
    count = len(p_values)
    ordered = np.sort(p_values)
    ranks = np.arange(1, count + 1)
    passing = np.flatnonzero(ordered <= alpha * (discoveries + ranks) / max(1, count))
    if alpha <= 0 or not len(passing):
        return np.zeros(count, dtype=np.bool_)
    return p_values <= ordered[passing[-1]]
