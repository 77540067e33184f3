"""How a policy that passed its gates gets traffic."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """Ways of moving traffic."""

    CANARY = "canary"
    """Stage by stage, promoted on evidence."""
    BLUE_GREEN = "blue_green"
    """All but the hold-back at once, watched for one soak period."""
    IMMEDIATE = "immediate"
    """All at once, unwatched."""


AUTO = "auto"
LARGE, MODERATE = 0.15, 0.05
"""Held-out improvements from which a bolder strategy is chosen."""


def chosen(setting: str, improvement: float | None) -> Strategy | None:
    """The strategy for a candidate with this held-out improvement; None means: do not deploy it.

    Only `auto` looks at the improvement: at least .15 goes out at once, at least .05 as blue_green, anything else
    from 0 up (or unknown) as a canary, and a negative improvement aborts.
    """
    if setting != AUTO:
        return Strategy(setting)
    if improvement is None:
        return Strategy.CANARY
    if improvement < 0:
        return None
    if improvement >= LARGE:
        return Strategy.IMMEDIATE
    return Strategy.BLUE_GREEN if improvement >= MODERATE else Strategy.CANARY
