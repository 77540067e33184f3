"""A rule of thumb where nothing better is known: the answer whose length is reasonable."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.core.preferences.rules.base import ROUNDING, Try, Verdict
from ratchet.core.rules.chat import last_answer

INCONCLUSIVE = "inconclusive"
CONTRADICTED = "contradicted_by_reward"
RATER = "answer-length"
SHORTEST, LONGEST = 20, 2000
"""Characters."""


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """Prefers the try whose last answer is within bounds when the other one's is not."""

    shortest: int = SHORTEST
    longest: int = LONGEST
    source: str = "heuristic"

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """See `Rule`. What is known to be worse is never preferred for its length."""
        fits, other_fits = self._fits(one), self._fits(other)
        if fits == other_fits:
            return INCONCLUSIVE
        better, worse = (one, other) if fits else (other, one)
        if better.success is False and worse.success is True:
            return CONTRADICTED
        if better.reward is not None and worse.reward is not None and better.reward + ROUNDING < worse.reward:
            return CONTRADICTED
        return Verdict(first=fits, rater=RATER, strength=0.0)

    def _fits(self, tried: Try) -> bool:
        return self.shortest <= len(last_answer(tried.messages)) <= self.longest
