"""In how few model calls, against the history of its task type? Worth nothing unless the task was done.

Of a task that was done in part nothing is efficient: otherwise who stops early, with few calls, would get more than who
goes on to the end.
"""

from __future__ import annotations

import math

from ratchet.core.rules.effort import model_calls
from ratchet.reward_computer.components.base import Assessment, Evidence
from ratchet.reward_computer.domain.normalization import Stats

MIN_HISTORY = 5
"""With less history than this every count is as good as another (z = 0)."""
CLIP = 2.0


def efficiency(evidence: Evidence) -> Assessment | None:
    """(z + 2) / 4 of a task that was done, where z is the standard score of *fewer* calls, clipped to +-2; else 0."""
    completion = evidence.completion
    if completion is None:
        return None
    calls, history = model_calls(evidence.trajectory), evidence.history
    z = standard_score(calls, history)
    mature = history.count / (history.count + MIN_HISTORY)
    return Assessment(
        (z + CLIP) / (2 * CLIP) if completion == 1.0 else 0.0,
        evidence.trust * mature,
        f"{calls} model {'call' if calls == 1 else 'calls'}, {_comparison(history)}",
        raw_data={"calls": calls, "z": z, "count": history.count, "mean": history.mean, "std": history.std},
    )


def _comparison(history: Stats) -> str:
    if not history.count:
        return "the first run of its kind"
    return f"{history.mean:.1f} +- {history.std:.1f} over {history.count} runs before"


def standard_score(calls: int, history: Stats) -> float:
    """z of fewer calls, in -2..2: 0 without history; where all history is equal, the limit (0 if equal, else +-2)."""
    if history.count < MIN_HISTORY or calls == history.mean:
        return 0.0
    if history.std == 0.0:
        return math.copysign(CLIP, history.mean - calls)
    return min(CLIP, max(-CLIP, (history.mean - calls) / history.std))
