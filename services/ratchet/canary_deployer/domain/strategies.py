"""The ways in which a policy that passed its gates gets traffic, and the rule that chooses one.

- `canary`: stage by stage, promoted on evidence. The safe one, and the default.
- `blue_green`: all new trajectories at once but the hold-back, watched for one soak period. The rollback tests compare
  with the hold-back (5 %); the previous policy stays resident, so that a rollback is one write. When the soak passes
  without an alarm, the hold-back goes too.
- `immediate`: all new trajectories at once, unwatched; the previous policy stays resident for a revert. For the first
  policy of a role, which has nothing to be compared with, and for an operator who asks for it and overrides.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.rollout import State


@dataclass(frozen=True, slots=True)
class Strategy:
    """Where a rollout goes from its gates. What follows (tests, trip wires, rollback) is the same for all."""

    first: State
    """`running`: stage by stage. `soaking`: all but the hold-back, watched. `promoted`: all, at once."""

    def enters(self, soaks: bool) -> State:
        """The state after the gates. Without a hold-back there is nothing to compare with, and no soak."""
        return State.PROMOTED if self.first is State.SOAKING and not soaks else self.first


CANARY, BLUE_GREEN, IMMEDIATE = "canary", "blue_green", "immediate"
STRATEGIES = {
    CANARY: Strategy(first=State.RUNNING),
    BLUE_GREEN: Strategy(first=State.SOAKING),
    IMMEDIATE: Strategy(first=State.PROMOTED),
}
"""By name. A new one is a line here, and a value of `rollout_strategy` in the contract."""

AUTO = "auto"
"""Setting that leaves the choice to `chosen`."""

MODERATE = 0.05
"""Held-out improvement from which a bolder strategy is chosen."""


def chosen(setting: str, improvement: float | None) -> str | None:
    """Name of the strategy for a candidate with this held-out improvement; None means: do not deploy it.

    Only `auto` looks at the improvement: at least .05 goes out as blue_green, anything else from 0 up (or unknown) as a
    canary, and a negative improvement is refused. It never chooses `immediate`, which no test watches.
    """
    if setting != AUTO:
        return setting
    if improvement is None:
        return CANARY
    if improvement < 0:
        return None
    return BLUE_GREEN if improvement >= MODERATE else CANARY
