"""Rules by the source that their preferences name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ratchet.core.preferences.rules.answer_length import AnswerLength
from ratchet.core.preferences.rules.base import Rule
from ratchet.core.preferences.rules.retrieval import Retrieval
from ratchet.core.preferences.rules.reward_margin import RewardMargin

RULES: Mapping[str, Callable[[float], Rule]] = {
    "derived": RewardMargin,
    "heuristic": lambda _: AnswerLength(),
    "rag": lambda margin: Retrieval(RewardMargin(margin)),
}
"""Source -> its rule, given the margin of rewards."""
