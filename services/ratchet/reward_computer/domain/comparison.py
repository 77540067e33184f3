"""Rewards under one function against those that count now: the mean difference, the ranks, the largest changes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.core.contract import Reward
from ratchet.core.contract.reward_commands import Change, Comparison
from ratchet.core.rules.intervals import Z95

SHOWN = 10
"""Changes in a report."""
EQUAL = 1e-9
"""Totals that differ by less are equal: they are sums of floats."""


@dataclass
class Compared:
    """Totals of one role, before and after; and the largest changes of all."""

    totals: dict[str, tuple[list[float], list[float]]] = field(
        default_factory=dict[str, tuple[list[float], list[float]]]
    )
    _largest: list[tuple[float, str, Change]] = field(default_factory=list[tuple[float, str, Change]])

    def add(self, before: Reward, after: Reward) -> None:
        """One trajectory more."""
        befores, afters = self.totals.setdefault(after.role, ([], []))
        befores.append(before.total_reward)
        afters.append(after.total_reward)
        size = abs(after.total_reward - before.total_reward)
        if size > EQUAL and (len(self._largest) < SHOWN or size > self._largest[0][0]):
            heapq.heappush(self._largest, (size, f"{after.role} {after.trajectory_id}", change_of(before, after)))
            if len(self._largest) > SHOWN:
                heapq.heappop(self._largest)

    def changes(self) -> list[Change]:
        """The largest ones, the largest first."""
        return [change for _, _, change in sorted(self._largest, key=lambda entry: (-entry[0], entry[1]))]

    def comparisons(self) -> list[Comparison]:
        """One for each role, the one with the most trajectories first."""
        made = [compared(role, *totals) for role, totals in self.totals.items()]
        return sorted(made, key=lambda one: (-one.trajectories, one.role))


def change_of(before: Reward, after: Reward) -> Change:
    """What changes of a trajectory's reward."""
    old, new = (
        {name: part.score for name, part in reward.reward_components.items() if part.applicable}
        for reward in (before, after)
    )
    scores = {name: (old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))}
    return Change(
        role=after.role,
        trajectory_id=after.trajectory_id,
        before=before.total_reward,
        after=after.total_reward,
        components={name: pair for name, pair in scores.items() if pair[0] != pair[1]},
    )


def compared(role: str, before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Two totals of each of some trajectories, at least one."""
    old, new = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    difference = new - old
    mean = float(difference.mean())
    half = Z95 * float(difference.std(ddof=1)) / math.sqrt(len(old)) if len(old) > 1 else math.inf
    return Comparison(
        role=role,
        trajectories=len(old),
        before=float(old.mean()),
        after=float(new.mean()),
        low=max(-1.0, mean - half),
        high=min(1.0, mean + half),
        changed=int((np.abs(difference) > EQUAL).sum()),
        rank_correlation=rank_correlation(old, new),
    )


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's, equal values with the mean of their ranks; None where the values of one side are all equal."""
    ranks, others = ranked(one), ranked(other)
    if len(one) < 2 or not ranks.std() or not others.std():
        return None
    return float(np.corrcoef(ranks, others)[0, 1])


def ranked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value, from 1; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
