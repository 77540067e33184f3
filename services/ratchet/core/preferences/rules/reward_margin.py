"""The try that is known to be better: a verified success over a verified failure, else the clearly higher reward."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.core.preferences.rules.base import NO_DIFFERENCE, NO_REWARD, ROUNDING, Try, Verdict

MARGIN = 0.2
"""Smallest difference of total rewards that says something: totals lie in 0..1."""
VERIFIED, REWARD = "verified-outcome", "reward-margin"


@dataclass(frozen=True, slots=True)
class RewardMargin:
    """A verified outcome is a fact and comes first; rewards count where it does not tell the tries apart."""

    margin: float = MARGIN
    source: str = "derived"

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """See `Rule`."""
        if one.success is not None and other.success is not None and one.success != other.success:
            return Verdict(first=one.success, rater=VERIFIED, strength=1.0, confidence=1.0)
        if one.reward is None or other.reward is None:
            return NO_REWARD
        difference = one.reward - other.reward
        if difference == 0 or abs(difference) + ROUNDING < self.margin:
            return NO_DIFFERENCE
        size = min(abs(difference), 1.0)
        return Verdict(first=difference > 0, rater=REWARD, strength=size, confidence=size)
