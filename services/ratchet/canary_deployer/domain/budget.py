"""How the 5 % of false rollbacks are shared: a union bound over everything that may roll back by itself."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BUDGET = 0.05
"""Share of rollouts of a canary that is not worse than its margins that may be rolled back."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The probability with which each test may roll back a canary that is not worse. Their sum is the guarantee."""

    evidence: float = 0.03
    """The e-process over all metrics."""
    first_call: float = 0.01
    """The e-process over first calls."""
    run: float = 0.005
    """Canary trajectories that fail one after the other."""
    safety: float = 0.005
    """The e-process over safety violations."""

    @property
    def total(self) -> float:
        """At most this share of canaries that are not worse is rolled back."""
        return self.evidence + self.first_call + self.run + self.safety


def threshold(share: float) -> float:
    """The e-value that uses up a share (Ville's inequality)."""
    return 1 / share


FULL_BUDGET = Budget()
"""The shares that settings begin with."""
