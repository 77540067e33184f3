"""Ranking by a teacher: a judge compares every two tries of a task, in both orders, and must answer the same twice.

A judge that prefers whichever answer stands first would otherwise teach that. The judge is asked first, beside the
event loop's other work; its answers then decide as any rule does, so that prompts, bounds and counts are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from ratchet.core.errors import BadRequest
from ratchet.core.judging.chat_judge import Comparison
from ratchet.core.judging.questions import transcript
from ratchet.core.preferences.derivation import common_prompt
from ratchet.core.preferences.rules.base import Rule, Try, Verdict
from ratchet.core.rules.call_budget import BudgetSpent

SOURCE = "teacher"
DISAGREED, UNDECIDED, REFUSED, NOT_ASKED = "orders_disagree", "undecided", "judge_refused", "not_asked"
SPENT = "budget_spent"
AT_ONCE = 8
"""Questions that the judge has at a time."""
TRIES = 4
"""Newest tries of a task that are compared: 6 comparisons, and twice as many questions."""


class Judge(Protocol):
    """Says which of two answers is better."""

    @property
    def name(self) -> str:
        """The rater of its preferences."""
        ...

    async def compare(self, prompt: str, first: str, second: str) -> Comparison:
        """Raises `BadRequest` for texts that it does not take, `NotFound` or `Rejected` where it takes none,
        `BudgetSpent`, or `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherVerdicts:
    """`Rule`: what a judge answered. Only tries that it compared have a verdict."""

    rater: str
    better: Mapping[frozenset[str], str]
    """Ids of two tries -> the better one's, or the reason why there is none."""
    source: str = SOURCE

    def judge(self, one: Try, other: Try) -> Verdict | str:
        """See `Rule`."""
        answer = self.better.get(frozenset((one.trajectory_id, other.trajectory_id)), NOT_ASKED)
        if answer not in (one.trajectory_id, other.trajectory_id):
            return answer
        return Verdict(first=answer == one.trajectory_id, rater=self.rater, strength=1.0)


@dataclass(frozen=True, slots=True)
class Teacher:
    """Has a judge compare tries."""

    judge: Judge
    tries: int = TRIES
    """Most tries of one task that are compared, the first that are given."""
    source: str = SOURCE

    async def rule_for(self, tries: Sequence[Try]) -> Rule:
        """A rule that knows how the judge compares these tries. Raises `Unavailable`."""
        tasks: dict[tuple[str, str], list[Try]] = {}
        for tried in tries:
            tasks.setdefault((tried.role, tried.task_key), []).append(tried)
        pairs = [pair for task in tasks.values() for pair in combinations(task[: self.tries], 2)]
        at_once = asyncio.Semaphore(AT_ONCE)

        async def asked(one: Try, other: Try) -> str:
            async with at_once:
                return (await in_both_orders(self.judge, one, other)).better

        answers = await asyncio.gather(*(asked(one, other) for one, other in pairs))
        known = {
            frozenset((one.trajectory_id, other.trajectory_id)): answer
            for (one, other), answer in zip(pairs, answers, strict=True)
        }
        return TeacherVerdicts(self.judge.name, known)


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a judge says of two tries."""

    better: str
    """The id of the try that it prefers in either order, or the reason why there is none."""
    comparison: Comparison | None = None
    """Its answer when the first try came first."""


async def in_both_orders(judge: Judge, one: Try, other: Try) -> Ranked:
    """The try that a judge prefers wherever it stands. Raises `NotFound`, `Rejected` or `Unavailable`."""
    start = common_prompt(one.messages, other.messages)
    prompt = transcript(one.messages[:start])
    first, second = (transcript(tried.messages[start:]) for tried in (one, other))
    if first == second:
        return Ranked(UNDECIDED)
    try:
        forward = await judge.compare(prompt, first, second)
        backward = await judge.compare(prompt, second, first)
    except BudgetSpent:
        return Ranked(SPENT)
    except BadRequest:
        return Ranked(REFUSED)
    if forward.prefers_first is None or backward.prefers_first is None:
        return Ranked(UNDECIDED, forward)
    if forward.prefers_first == backward.prefers_first:  # the better one changed with its place
        return Ranked(DISAGREED, forward)
    return Ranked(one.trajectory_id if forward.prefers_first else other.trajectory_id, forward)
