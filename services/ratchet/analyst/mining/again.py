"""An existing pattern, measured again in newer windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.analyst.mining import behavior, clusters
from ratchet.analyst.mining.base import Episodes, Hypothesis
from ratchet.analyst.mining.measure import Pool, contrast
from ratchet.core.contract.learning import Effect, Pattern


@dataclass(frozen=True, slots=True)
class Measured:
    """A pattern in a window."""

    share: float
    count: int
    effect: Effect | None
    """None where the window cannot tell: nothing matches, everything does, or the measure is unknown; and for inputs,
    whose classifier is not kept."""


def measure_again(pattern: Pattern, before: Episodes, now: Episodes) -> Measured:
    """An existing pattern in the window `now`; one about a change, against the window `before`."""
    claim = _claim(pattern)
    windows = (before, now) if claim.between_windows else (now,)
    pool = Pool.of(*((episodes, np.ones(len(episodes), dtype=np.bool_)) for episodes in windows))
    count = int(np.count_nonzero(now.matching(pattern.triggers)))
    share = count / max(1, len(now))
    differs = contrast(claim, pool.sample(claim))
    if np.isnan(differs.value):
        return Measured(share, count, None)
    low, high = differs.interval()
    return Measured(share, count, Effect(measure=pattern.effect.measure, value=differs.value, low=low, high=high))


def _claim(pattern: Pattern) -> Hypothesis:
    """The hypothesis that the pattern was."""
    if pattern.finding in behavior.RESTORED:
        return behavior.RESTORED[pattern.finding](pattern.triggers[0].value)
    if pattern.finding == clusters.POLICIES_DIFFER:
        return clusters.differing(pattern.triggers[:-1], pattern.triggers[-1])
    between = pattern.kind == "drift" or not pattern.triggers
    return Hypothesis(pattern.kind, pattern.finding, pattern.effect.measure, pattern.triggers, between)
