"""How many false findings are tolerated: within one run, and over the runs of a horizon.

Within a run p-values are compared as Benjamini and Hochberg (1995) do. Over runs the level is spent as LOND does
(Javanmard and Montanari, 2015: levels based on the number of discoveries), each run being a batch of tests. Of N runs
that fit a horizon each may spend `alpha`, the Nth part of the rate of false discoveries that is tolerated, and a
hypothesis is borne out where `p <= alpha * (D + R) / m`, with D discoveries before this run, R in it, m tests in it. A
discovery is a pattern that opens: what is open or dismissed already, and what a stronger one tells of as well, is none
(R may be any number that the level by it bears out: Blanchard and Roquain, 2008). Each true null hypothesis then adds
at most `alpha / m` to the expected share of false discoveries at the horizon's end: all together the rate. Benjamini
and Hochberg's procedure at the level `alpha * (D + 1)` has no such sum: where D and R are both large it bears out more.

What LOND assumes is that a run's p-values are uniform or larger whatever was discovered before. Runs that follow one
another at one length share the window between them; runs that are asked for, and those after a change of the length,
share more; and the parts of the subjects are the same: a subject whose luck lasts is met again by the same test. Where
all hypotheses of a horizon are null the rate holds without that: by the sum of the runs, whatever they share. Where
some are true it is not proven for runs that share trajectories.
"""

from __future__ import annotations

import numpy as np

from ratchet.analyst.mining.base import Floats, Mask


def level_of(alpha: float, discoveries: int, count: int) -> float:
    """What a p-value may be: at a run's level, by the discoveries of the horizon with its own, among `count` tests. One
    that would be the first counts itself."""
    return alpha * max(1, discoveries) / max(1, count)


def borne_out(p_values: Floats, alpha: float, discoveries: int = 0, known: Mask | None = None) -> Mask:
    """Which hypotheses (m,) hold at `alpha`, a run's level, after `discoveries` of earlier runs of the horizon. Those
    that are `known` (m,) count as none."""
    count = len(p_values)
    ordered = np.sort(p_values if known is None else p_values[~known])
    made = [r for r in range(1, len(ordered) + 1) if ordered[r - 1] <= level_of(alpha, discoveries + r, count)]
    return (p_values <= level_of(alpha, discoveries + max(made, default=0), count)) & (alpha > 0)
