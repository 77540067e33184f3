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

import msgspec

from ratchet.core.errors import Rejected
from ratchet.core.preferences.derivation import common_prompt
from ratchet.core.preferences.rules.base import Chat, Rule, Try, Verdict
from ratchet.core.rules.chat import text_of

SOURCE = "teacher"
DISAGREED, UNDECIDED, REFUSED, NOT_ASKED = "orders_disagree", "undecided", "judge_refused", "not_asked"
INVALID_KEY = "invalid_api_key"
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

    async def prefers_first(self, prompt: str, first: str, second: str) -> bool | None:
        """None: neither is better. Raises `Rejected` for texts that it does not take, or `Unavailable`."""
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
        answers = await asyncio.gather(*(self._better(one, other, at_once) for one, other in pairs))
        known = {
            frozenset((one.trajectory_id, other.trajectory_id)): answer
            for (one, other), answer in zip(pairs, answers, strict=True)
        }
        return TeacherVerdicts(self.judge.name, known)

    async def _better(self, one: Try, other: Try, at_once: asyncio.Semaphore) -> str:
        """The better try's id, or a reason. Asked in both orders."""
        start = common_prompt(one.messages, other.messages)
        prompt = transcript(one.messages[:start])
        first, second = (transcript(tried.messages[start:]) for tried in (one, other))
        if first == second:
            return UNDECIDED
        try:
            async with at_once:
                forward = await self.judge.prefers_first(prompt, first, second)
                backward = await self.judge.prefers_first(prompt, second, first)
        except Rejected as error:
            if error.code == INVALID_KEY:  # no question has an answer
                raise
            return REFUSED
        if forward is None or backward is None:
            return UNDECIDED
        if forward == backward:  # the better one changed with its place
            return DISAGREED
        return one.trajectory_id if forward else other.trajectory_id


def transcript(messages: Chat) -> str:
    """Messages as a judge reads them, calls of tools included."""
    lines: list[str] = []
    for message in messages:
        calls = [msgspec.json.encode(call.get("function")).decode() for call in message.get("tool_calls") or []]
        text = "\n".join([text_of(message.get("content")), *calls]).strip()
        lines.append(f"[{message.get('role')}]\n{text}")
    return "\n\n".join(lines)
