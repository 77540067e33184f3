"""The failure-streak trip wire: canary trajectories that started one after the other all fail, and stable's do not.

Take a run that begins at canary trajectory number c (in the order of starts) and has k of them, all known failures, and
the s stable trajectories that started between its first and its last, of which at most f fail (a pending one counts as
failed). While stable fails with probability p in that span and the canary with at most p + d, independently given the
past, this has probability at most

    B(k, s, f) = max over p of  min(1, p + d)^k  P(Binomial(s, p) <= f),      P(...) <= exp(-s KL(f/s, p)) for p > f/s

(Chernoff 1952; it also holds for stable trajectories with different p and their mean). The arms are drawn independently
of the outcomes, so s says nothing about them. `p` is whatever stable's own rate is in that span: it is never estimated
from other times, so a hard evening or an outage of both arms, which raises f too, does not touch the wire. What breaks
the bound is a rate that moves within one span in step with the draws of the arms.

Over a whole rollout, of whatever length, the runs share the budget: one that begins at trajectory c = 2^j ... 2^(j+1) -
1 and has length k gets 1 / (2^j (j+1) (j+2)) * 1 / (k (k+1)) of it, which sums to 1 over all c and k. The wire touches
when B is at most that part of its share; by the union bound it does so in at most its share of rollouts.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from ratchet.canary_deployer.domain.e_processes import Flags, Floats

SHORTEST = 4
"""Runs below this length are not worth a look: their bound is never small enough."""

_GRID = np.linspace(0.0, 1.0, 401)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """The run that was under way after some trajectories; length 0: none."""

    begun: int = 0
    """Canary trajectories that have started, this run's included."""
    length: int = 0
    stable: int = 0
    """Stable trajectories that started after the run's first."""
    failed: int = 0
    """Those of them that failed or are pending."""


def runs(before: Run, canary: Flags, failed: Flags, spared: Flags, margin: float) -> tuple[float, Run]:
    """The smallest share that any whole run in these trajectories uses up (1: none), and the one under way after them.

    `failed` are known failures; `spared` are stable trajectories that are known not to have failed.
    """
    places = np.flatnonzero(canary)
    stable = np.cumsum(~canary) + before.stable
    bad = np.cumsum(~canary & ~spared) + before.failed
    total = Run(before.begun, before.length, int(stable[-1]), int(bad[-1])) if len(canary) else before
    if len(places) == 0:
        return 1.0, total if before.length else Run(before.begun)
    fails = failed[places]
    starts = np.flatnonzero(fails & ~np.concatenate([[before.length > 0], fails[:-1]]))
    if fails[0] and before.length:
        starts = np.concatenate([[-1], starts])
    ends = np.flatnonzero(fails & ~np.concatenate([fails[1:], [False]]))
    smallest, last = 1.0, Run(before.begun + len(places))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        carried = start < 0
        length = end + 1 + before.length if carried else end + 1 - start
        origin = (0, 0) if carried else (int(stable[places[start]]), int(bad[places[start]]))
        begun = before.begun + end + 1
        if length >= SHORTEST:
            run = Run(begun, length, int(stable[places[end]]) - origin[0], int(bad[places[end]]) - origin[1])
            smallest = min(smallest, spent(run, margin))
        if end == len(places) - 1:
            last = Run(begun, length, int(stable[-1]) - origin[0], int(bad[-1]) - origin[1])
    return smallest, last


def spent(run: Run, margin: float) -> float:
    """The share of false alarms that stopping at this run would use up."""
    first = run.begun - run.length + 1
    octave = int(math.log2(first))
    part = octave * math.log(2) + math.log((octave + 1) * (octave + 2)) + math.log(run.length * (run.length + 1))
    return math.exp(min(0.0, log_bound(run, margin) + part))


def log_bound(run: Run, margin: float) -> float:
    """The logarithm of B, rounded up: each cell of the grid takes the better end of both terms."""
    low, high = _GRID[:-1], _GRID[1:]
    fails = run.length * np.log(np.minimum(1.0, high + margin))
    return float((fails + _log_tail(run.stable, run.failed, low)).max())


def _log_tail(trials: int, failed: int, rate: Floats) -> Floats:
    """Chernoff's bound on log P(Binomial(trials, rate) <= failed)."""
    if trials == 0 or failed >= trials:
        return np.zeros_like(rate)
    share = failed / trials
    with np.errstate(divide="ignore", invalid="ignore"):
        first = share * np.log(share / rate) if share > 0 else np.zeros_like(rate)
        divergence = first + (1 - share) * np.log((1 - share) / (1 - rate))
    return np.where(rate > share, -trials * divergence, 0.0)
