"""Procedural tasks of reasoning-gym (Apache-2.0), asked in the package's own words and judged by its own scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.local.demo.plan import Supervised
from tools.learning.worlds.base import Outcome
from tools.learning.worlds.procedural import Procedural, Question, in_any_order
from tools.learning.worlds.public import NoTasks
from tools.learning.worlds.single_answers import SingleAnswer, shown_text

DRAW_SEED = 5
ONLY_ANSWER: JsonObject = {"role": "system", "content": "Give only the answer."}
WARM_UP = Supervised(examples=128, steps=8, learning_rate=1e-3, batch=16)
LONGER = replace(WARM_UP, examples=300, steps=24)


@dataclass(frozen=True, slots=True)
class Dataset:
    """One of the package's, and how it is asked here."""

    name: str
    options: Mapping[str, Any]
    """Of the package; `Any` because each dataset has its own."""
    graded: bool = False
    """The package's partial scores are rewards. Otherwise only the right answer is worth something: a wrong number that
    contains the right one has a part of it in the package."""
    warm_up: Supervised = WARM_UP
    """Teaches the form of an answer, and leaves room to learn."""

    def questions(self) -> Iterator[Question]:
        """Without end. Raises `NoTasks`."""
        made = _created(self)
        return (self._question(made, made[number]) for number in count())

    def _question(self, made: Any, entry: Mapping[str, Any]) -> Question:
        asked = str(entry["question"]).strip()
        messages = [ONLY_ANSWER, {"role": "user", "content": asked}]

        def judge(content: str, calls: Sequence[tuple[str, str]]) -> Outcome:
            score = float(made.score_answer(content.strip(), entry))
            solved = score >= 1 and not calls
            return Outcome(solved, len(calls), graded=score if self.graded and not calls else None)

        task = SingleAnswer(f"{self.name}: {asked}", self.name, messages, [], judge)
        return Question(in_any_order(asked), task, shown_text(task, str(entry["answer"])))


REASONING: Mapping[str, Procedural] = {
    dataset.name: Procedural(dataset.questions, max_tokens, dataset.warm_up)
    for dataset, max_tokens in (
        (Dataset("spell_backward", {"min_word_len": 3, "max_word_len": 6}, graded=True), 10),
        (Dataset("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, warm_up=LONGER), 6),
        (Dataset("letter_counting", {"min_words": 4, "max_words": 8}), 4),
        (Dataset("number_sorting", {"min_numbers": 3, "max_numbers": 4, "max_decimals": 0}), 48),
        (Dataset("products", {"min_digits": 1, "max_digits": 2}), 8),
        (Dataset("base_conversion", {"max_base": 10, "max_value": 80}), 8),
        (Dataset("word_sorting", {"min_words": 3, "max_words": 4, "max_word_length": 6}, graded=True), 24),
        (Dataset("word_sequence_reversal", {"min_words": 3, "max_words": 4}), 28),
        (Dataset("family_relationships", {"min_family_size": 4, "max_family_size": 5}), 8),
        (Dataset("gcd", {"max_value": 100}), 4),
        (Dataset("needle_haystack", {"min_num_statements": 3, "max_num_statements": 5}), 8),
        (Dataset("simple_equations", {"min_terms": 2, "max_terms": 2, "max_value": 20}), 6),
        (Dataset("number_format", {"min_num_candidates": 2, "max_num_candidates": 3, "max_n": 10_000}), 12),
        (Dataset("complex_arithmetic", {"operations": ("+", "-"), "operations_weights": [0.5, 0.5]}), 14),
        (Dataset("color_cube_rotation", {}), 6),
    )
}
"""Short questions with short answers."""


@cache
def _package() -> Any:
    """Raises `NoTasks`."""
    try:
        version("reasoning-gym")
    except PackageNotFoundError as error:
        raise NoTasks("the questions are in the package reasoning-gym, which is not installed: make tasks") from error
    return import_module("reasoning_gym")


def _created(dataset: Dataset) -> Any:
    return _package().create_dataset(dataset.name, seed=DRAW_SEED, size=10**9, **dataset.options)
