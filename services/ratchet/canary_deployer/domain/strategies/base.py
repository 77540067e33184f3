"""What every strategy is: it says how traffic begins to move once the gates are passed."""

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
