"""Retrieval against none: the same task played both ways, compared by outcome and reward."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ratchet.core.preferences.rules.base import Try, Verdict
from ratchet.core.preferences.rules.reward_margin import RewardMargin

NOT_BOTH_WAYS = "not_rag_against_plain"
UNLABELLED = "no_rag_label"


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Compares only a try labelled `rag: true` with one labelled `rag: false`; either may win."""

    comparison: RewardMargin = field(default_factory=RewardMargin)
    source: str = "rag"

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """See `Rule`."""
        if one.rag is None or other.rag is None:
            return UNLABELLED
        if one.rag == other.rag:
            return NOT_BOTH_WAYS
        verdict = self.comparison.judge(one, other)
        return verdict if isinstance(verdict, str) else replace(verdict, rater=f"rag-{verdict.rater}")
