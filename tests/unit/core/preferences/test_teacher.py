"""A judge ranks tries: it is asked in both orders, and what it does not answer alike twice is counted, not learnt."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.core.judging.chat_judge import Comparison
from ratchet.core.judging.questions import transcript
from ratchet.core.preferences.derivation import derive_pairs
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.teacher import Teacher
from ratchet.core.rules.call_budget import BudgetSpent

ASKED: list[JsonObject] = [{"role": "user", "content": "Where is it?"}]


def tried(name: str, text: str) -> Try:
    messages: list[JsonObject] = [*ASKED, {"role": "assistant", "content": text}]
    return Try(trajectory_id=name, role="support", task_key="task", messages=messages)


@dataclass
class ScriptedJudge:
    """Ranks answers by their digits; prefers the first one where a text is vague, and refuses what is long."""

    name: str = "judge"
    questions: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def compare(self, prompt: str, first: str, second: str) -> Comparison:
        assert prompt == "[user]\nWhere is it?"
        self.questions.append((first, second))
        texts = first + second
        if "long" in texts:
            raise BadRequest("too long")
        if "dear" in texts:
            raise BudgetSpent
        if "tie" in texts:
            return Comparison(prefers_first=None)
        return Comparison(prefers_first=True if "vague" in texts else first > second)


async def ranked(*tries: Try, most: int = 8) -> tuple[list[tuple[str, str]], dict[str, int]]:
    rule = await Teacher(ScriptedJudge(), most).rule_for(tries)
    derivation = derive_pairs(tries, rule, 99)
    assert {pair.preference().source for pair in derivation.pairs} <= {"teacher"}
    assert {pair.preference().rater for pair in derivation.pairs} <= {"judge"}
    pairs = sorted((pair.chosen.trajectory_id, pair.rejected.trajectory_id) for pair in derivation.pairs)
    return pairs, dict(derivation.skipped)


async def test_the_better_answer_is_the_same_in_either_order() -> None:
    assert await ranked(tried("low", "1"), tried("high", "9")) == ([("high", "low")], {})
    assert await ranked(tried("high", "9"), tried("low", "1")) == ([("high", "low")], {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vague", "orders_disagree"),
        ("tie", "undecided"),
        ("long", "judge_refused"),
        ("dear", "budget_spent"),
        ("1", "undecided"),
    ],
)
async def test_a_comparison_without_a_clear_answer_is_counted(text: str, reason: str) -> None:
    assert await ranked(tried("one", "1"), tried("other", text)) == ([], {reason: 1})


async def test_of_a_task_with_many_tries_only_some_are_compared() -> None:
    pairs, skipped = await ranked(*(tried(str(n), str(n)) for n in range(4)), most=2)
    assert (pairs, skipped) == ([("1", "0")], {"not_asked": 5})


async def test_a_judge_is_not_asked_about_equal_answers_and_reads_calls_of_tools() -> None:
    judge = ScriptedJudge()
    await Teacher(judge).rule_for([tried("one", "same"), tried("other", "same")])
    assert judge.questions == []
    call: JsonObject = {"function": {"name": "find", "arguments": "{}"}}
    messages: list[JsonObject] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert transcript(messages) == '[assistant]\n{"name":"find","arguments":"{}"}'
