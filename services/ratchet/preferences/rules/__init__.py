"""Rules by the source that their preferences name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ratchet.preferences.rules.answer_length import AnswerLength
from ratchet.preferences.rules.base import Rule
from ratchet.preferences.rules.retrieval import Retrieval
from ratchet.preferences.rules.reward_margin import RewardMargin

RULES: Mapping[str, Callable[[float], Rule]] = {
    "derived": RewardMargin,
    "heuristic": lambda _: AnswerLength(),
    "rag": lambda margin: Retrieval(RewardMargin(margin)),
}
"""Source -> its rule, given the margin of rewards."""
