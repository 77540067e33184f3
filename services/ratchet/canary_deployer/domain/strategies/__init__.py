"""The ways in which a policy that passed its gates gets traffic, and the rule that chooses one."""

from ratchet.canary_deployer.domain.strategies import blue_green, canary, immediate
from ratchet.canary_deployer.domain.strategies.base import Strategy

STRATEGIES: dict[str, Strategy] = {
    canary.NAME: canary.STRATEGY,
    blue_green.NAME: blue_green.STRATEGY,
    immediate.NAME: immediate.STRATEGY,
}
"""Name -> strategy. A new one is a new file and a line here (and a value of `rollout_strategy` in the contract)."""

DEFAULT = canary.NAME
AUTO = "auto"
"""Setting that leaves the choice to `chosen`."""

MODERATE = 0.05
"""Held-out improvement from which a bolder strategy is chosen."""


def chosen(setting: str, improvement: float | None) -> str | None:
    """Name of the strategy for a candidate with this held-out improvement; None means: do not deploy it.

    Only `auto` looks at the improvement: at least .05 goes out as blue_green, anything else from 0 up (or unknown) as a
    canary, and a negative improvement is refused. It never chooses `immediate`: nobody watches that.
    """
    if setting != AUTO:
        return setting
    if improvement is None:
        return canary.NAME
    if improvement < 0:
        return None
    return blue_green.NAME if improvement >= MODERATE else canary.NAME


__all__ = ["AUTO", "DEFAULT", "STRATEGIES", "Strategy", "chosen"]
