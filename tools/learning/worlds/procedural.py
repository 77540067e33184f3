"""Worlds of single questions that are drawn without end: the exam is drawn first, and nothing learns from its like."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice

from ratchet.local.demo.plan import Reinforced, Supervised
from tools.learning.worlds.base import Engine
from tools.learning.worlds.public import Demonstration, PublicTasks
from tools.learning.worlds.single_answers import SingleAnswer

HELD_OUT, TRAINING = 400, 2600
"""Questions of the exam, and those to learn from."""
DRAWN = 60_000
"""Questions at most, to come by so many that differ."""
SEATS, PREFIX_TOKENS = 128, 40_000
CYCLE = Reinforced(sample_size=128, learning_rate=3e-4, epochs=1, batch=128)
"""One train step over all rows that have a signal. Of 1e-4 and 3e-4 the latter gained about three times as much a cycle
of needle_haystack."""


@dataclass(frozen=True, slots=True)
class Question:
    """A task with its right answer."""

    twins: Hashable
    """The same for questions that are alike: 3 + 4 and 4 + 3."""
    task: SingleAnswer
    shown: Demonstration


def in_any_order(text: str) -> tuple[str, ...]:
    """The words of a question, whatever their order: twins have the same."""
    return tuple(sorted(text.split()))


@dataclass(frozen=True, slots=True)
class Procedural:
    """Questions that are drawn without end, and how policies are made for them."""

    questions: Callable[[], Iterator[Question]]
    """The same ones at every call."""
    max_tokens: int
    """Of an answer: a little more than the longest right one."""
    imitation: Supervised

    def world(self, seed: int) -> PublicTasks:
        """The world of a seed. Raises `NoTasks`."""
        exam, learnt = apart(self.questions())
        return PublicTasks(
            seed=seed,
            tasks=[question.task for question in learnt],
            exam=[question.task for question in exam],
            shown=[question.shown for question in learnt],
            engine=Engine(self.max_tokens, seats=SEATS, prefix_tokens=PREFIX_TOKENS, together=8),
            imitation=self.imitation,
            cycle=CYCLE,
        )


def apart(
    questions: Iterator[Question], held_out: int = HELD_OUT, training: int = TRAINING
) -> tuple[list[Question], list[Question]]:
    """The exam, and what is learnt from: no question of it has a twin in the exam, and none comes twice."""
    exam: dict[Hashable, Question] = {}
    learnt: dict[str, Question] = {}
    for question in islice(questions, DRAWN):
        if len(exam) < held_out:
            exam.setdefault(question.twins, question)
        elif question.twins not in exam:
            learnt.setdefault(question.task.task_id, question)
        if len(learnt) == training:
            return [*exam.values()], [*learnt.values()]
    raise ValueError(f"of {DRAWN:,} questions only {len(exam) + len(learnt):,} differ")
