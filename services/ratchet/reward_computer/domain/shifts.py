"""Has a number that every trajectory gives changed its level? A sequential test that needs no known past.

**Statistic.** A tracker has seen values x_1 .. x_t since it began. Of the newest, g_t = (how many are smaller, less how
many are greater) / t is its rank among all of them, centred. A bet `a` multiplies its wealth by 1 + a g_t, and starts
again from 1 wherever that had fallen below 1: W_t = max(W_{t-1}, 1) (1 + a g_t). That is Page's CUSUM (1954) of
conformal e-values (Vovk, Nouretdinov and Gammerman, Conformal e-testing, arXiv:2006.02329): the e-CUSUM of Shin, Ramdas
and Rinaldo (E-detectors, arXiv:2203.03532), but the level before the change need not be known.

**What is assumed** of a world without a change: the values since the tracker began are exchangeable (independent draws
of one distribution are), whatever that distribution is. Ties are allowed: equal values share a rank.

**Theorem.** Then P(W_t >= c) <= 1 / c at every fixed t. Proof: W_t is the largest product of the last factors, from
some k <= t on. Let H_k be x_{k+1} .. x_t in order, and x_1 .. x_k without their order. Given H_k, x_k is any of x_1 ..
x_k with equal chance, and over these g_k sums to 0: the factor at k has the mean 1, while all later factors are known.
So the products for k = t, t - 1, .. are a nonnegative martingale with respect to H_t, H_{t-1}, .., and Ville's
inequality (1939) bounds their maximum. Forward in time W is none (g_t tells about ties), so every look is paid for by
itself.

**Alarm.** After every `LOOK`-th value of a tracker: some bet has W >= `len(BETS)` x `ODDS`. By the theorem and a union
over bets, a look is wrong with chance 1 / `ODDS` at most. 1,000 values in a row have at most 30 looks (20, and 10 more
while two trackers work): **without a change they raise an alarm with chance 30 / 6,000 = 1/200 at most**, n values with
chance n / 200,000 (and one look's). So the mean run to a false alarm is above 100,000 values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.contract import Value

LEVELS = 256
"""A value in 0..1 is counted at one of so many levels: values of one level are ties."""
BETS = (-0.8, -0.35, 0.35, 0.8)
"""Below 0: the level fell. The smaller ones grow fastest under shifts of a third of a standard deviation, the larger
ones under shifts of two thirds and more."""
WARM_UP, BESIDE = 100, 500
"""Values that a tracker only collects: a rank among fewer says little. Beside an older one it collects more: its looks
are paid for as well, and show what that one has not seen only when it takes its place."""
LOOK = 50
RENEWAL = 3000
"""When the newest tracker has so many values, the next one begins beside it ..."""
FORGOTTEN = 4000
"""... and takes its place when it has so many: the past of a year ago is no past to compare with."""
ODDS = 6000
ALARM = math.log(len(BETS) * ODDS)


class Run(Value, frozen=True, kw_only=True):
    """The values since a bet last started again from 1."""

    wealth: float = 0.0
    """Logarithm."""
    values: int = 0
    total: float = 0.0


class Tracker(Value, frozen=True, kw_only=True):
    """The values since some trajectory, by level, and what bets on a change have won."""

    levels: list[int]
    values: int
    total: float
    runs: list[Run]


FRESH = Tracker(levels=[0] * LEVELS, values=0, total=0.0, runs=[Run() for _ in BETS])


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level."""

    rises: bool
    before: float
    """Mean of the values before it."""
    after: float
    """Mean of those since."""
    values: int
    """How many these are."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value: as people know it, and as a share in 0..1, in the same order."""

    value: float
    share: float


def follow(trackers: Sequence[Tracker], reading: Reading) -> tuple[list[Tracker], Shift | None]:
    """The trackers with one value more, and the change that is seen now. After one everything begins anew."""
    grown = [
        _grown(tracker, reading, BESIDE if place else WARM_UP) for place, tracker in enumerate(trackers or (FRESH,))
    ]
    seen = next((shift for tracker in grown if (shift := _shift(tracker)) is not None), None)
    if seen is not None:
        return [], seen
    if grown[-1].values == RENEWAL:
        grown.append(FRESH)
    return [tracker for tracker in grown if tracker.values < FORGOTTEN], None


def evidence(trackers: Sequence[Tracker]) -> float:
    """How near an alarm is, 0..1: the largest wealth's logarithm in shares of the alarm's."""
    return max((run.wealth / ALARM for tracker in trackers for run in tracker.runs), default=0.0)


def centred_rank(levels: Sequence[int], level: int, values: int) -> float:
    """g of a value at `level` that comes to values counted by level: over all of them, itself among them, the sum of g
    is 0."""
    is_low = 2 * level < len(levels)  # the shorter side is summed, the other one is what remains
    side = sum(levels[:level] if is_low else levels[level + 1 :])
    rest = values - side - levels[level]
    return (side - rest if is_low else rest - side) / (values + 1)


def _grown(tracker: Tracker, reading: Reading, warm_up: int) -> Tracker:
    level = round(min(1.0, max(0.0, reading.share)) * (LEVELS - 1))
    rank, values = centred_rank(tracker.levels, level, tracker.values), tracker.values + 1
    levels = tracker.levels.copy()
    levels[level] += 1
    return Tracker(
        levels=levels,
        values=values,
        total=tracker.total + reading.value,
        runs=tracker.runs
        if values <= warm_up
        else [_bet(run, bet, rank, reading.value) for run, bet in zip(tracker.runs, BETS, strict=True)],
    )


def _bet(run: Run, bet: float, rank: float, value: float) -> Run:
    before = run if run.wealth > 0 else Run()
    return Run(wealth=before.wealth + math.log1p(bet * rank), values=before.values + 1, total=before.total + value)


def _shift(tracker: Tracker) -> Shift | None:
    if tracker.values % LOOK:
        return None
    best, bet = max(zip(tracker.runs, BETS, strict=True), key=lambda pair: pair[0].wealth)
    if best.wealth < ALARM:
        return None
    before = tracker.values - best.values
    return Shift(bet > 0, (tracker.total - best.total) / before, best.total / best.values, best.values)
