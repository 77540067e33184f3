"""How long a trajectory may take until its outcome is missing: frozen when a rollout starts, from stable's history.

The horizon is 1.5 times the .99 quantile of the times that outcomes of the stable policy took, from the announcement of
the trajectory to its first known outcome. It is clamped: too short a one calls slow outcomes missing, too long a one
holds back every prefix and keeps more trajectories open than there is room for. The setting holds where there is too
little history, or none that can be read. Whichever it was stands in the rollout's record, and holds until its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.bus.message import Value
from ratchet.canary_deployer.domain.forecast import DAY_S, Forecast
from ratchet.canary_deployer.domain.rules import Rules

QUANTILE = 0.99
HEAD_ROOM = 1.5
FEWEST_OUTCOMES = 100
"""Fewer outcomes say nothing about the slowest one in a hundred."""
MOST_OPEN = 36_000
"""Open trajectories that a rollout has room for (`tests/bench/bench_canary.py`): 20 a second for half an hour."""


class Horizon(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The horizon of one rollout, and where it comes from."""

    seconds: float
    basis: str
    """In words, for people."""
    outcomes: int = 0
    """How many of stable's outcomes it was measured on; 0: it is the setting."""
    quantile_s: float | None = None
    """The time within which .99 of them were known."""


def measured(took_s: Sequence[float], expected: Forecast | None, rules: Rules) -> Horizon:
    """The horizon from the times that stable's outcomes took; the setting's where they are too few."""
    if len(took_s) < FEWEST_OUTCOMES:
        count = f"{len(took_s)} of {FEWEST_OUTCOMES} outcomes of stable"
        return by_setting(f"{count} are known from before", rules)
    slow_s = quantile(took_s, QUANTILE)
    seconds = min(max(HEAD_ROOM * slow_s, rules.horizon_min_s), _longest_s(expected, rules))
    shown = f"{QUANTILE:.0%} of {len(took_s)} outcomes of stable were known within {slow_s:.0f} s"
    return Horizon(seconds=seconds, basis=shown, outcomes=len(took_s), quantile_s=slow_s)


def by_setting(why: str, rules: Rules) -> Horizon:
    """The horizon of the settings, and why no other is known."""
    return Horizon(seconds=rules.horizon_s, basis=f"the setting: {why}")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _longest_s(expected: Forecast | None, rules: Rules) -> float:
    """The upper bound; with much traffic the one that leaves room, but never less than the setting."""
    if expected is None:
        return rules.horizon_max_s
    room_s = MOST_OPEN / (expected.per_day / DAY_S)
    return min(rules.horizon_max_s, max(room_s, rules.horizon_s))
