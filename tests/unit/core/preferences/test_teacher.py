"""A judge ranks tries: it is asked in both orders, and what it does not answer alike twice is counted, not learnt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.preferences.derivation import derive_pairs
from ratchet.core.preferences.http_judge import ChatJudge
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.teacher import Teacher, transcript
from ratchet.core.service.asgi import Answer, Handler, JsonApi, Request, json_response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from tests.support.running import running

ASKED: list[JsonObject] = [{"role": "user", "content": "Where is it?"}]


def tried(name: str, text: str) -> Try:
    messages: list[JsonObject] = [*ASKED, {"role": "assistant", "content": text}]
    return Try(trajectory_id=name, role="support", task_key="task", messages=messages)


@dataclass
class ScriptedJudge:
    """Ranks answers by their digits; prefers the first one where a text is vague, and refuses what is long."""

    name: str = "judge"
    questions: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def prefers_first(self, prompt: str, first: str, second: str) -> bool | None:
        assert prompt == "[user]\nWhere is it?"
        self.questions.append((first, second))
        texts = first + second
        if "long" in texts:
            raise Rejected("too long")
        if "tie" in texts:
            return None
        return True if "vague" in texts else first > second


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
    [("vague", "orders_disagree"), ("tie", "undecided"), ("long", "judge_refused"), ("1", "undecided")],
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


@dataclass
class JudgeServer:
    """A server of OpenAI's API that answers what its script says; a number is an error's status."""

    replies: list[str | int | None]
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def find(self, method: str, path: str) -> Handler:
        assert (method, path) == ("POST", "/v1/chat/completions")
        return self.chat

    async def chat(self, request: Request) -> Answer:
        self.asked.append(request.json_object())
        reply = self.replies.pop(0)
        if isinstance(reply, int):
            return json_response({"error": {"message": "slowly, please"}}, reply)
        message = {"role": "assistant", "content": reply}
        return json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@asynccontextmanager
async def judge_of(script: JudgeServer) -> AsyncGenerator[ChatJudge]:
    server = HttpServer(JsonApi(script.find, 1 << 20), "127.0.0.1", 0)
    async with running(server), AsyncApiClient(Peer("the judge", f"http://127.0.0.1:{server.port}/v1")) as client:
        yield ChatJudge(client, "big", pauses_s=(0.0, 0.0))


async def test_a_model_behind_openais_api_is_asked_and_its_last_word_counts() -> None:
    script = JudgeServer(["A", "B is shorter, but wrong.\n\nA", "TIE", "Neither.", None, "B"])
    async with judge_of(script) as judge:
        answers = [await judge.prefers_first("p", "one", "other") for _ in range(6)]
    assert answers == [True, True, None, None, None, False]
    first = script.asked[0]
    assert (judge.name, first["model"], first["temperature"]) == ("big", "big", 0)
    assert first["messages"][1]["content"].index("one") < first["messages"][1]["content"].index("other")


async def test_a_judge_that_fails_now_and_then_is_asked_again() -> None:
    async with judge_of(JudgeServer(["A", 429, 503, "B", 500, 500, 500])) as judge:
        assert await judge.prefers_first("p", "one", "other") is True
        assert await judge.prefers_first("p", "one", "other") is False
        with pytest.raises(Unavailable, match="slowly, please"):
            await judge.prefers_first("p", "one", "other")


async def test_a_judge_that_never_answered_is_asked_once() -> None:
    async with judge_of(script := JudgeServer([503, "A"])) as judge:
        with pytest.raises(Unavailable):
            await judge.prefers_first("p", "one", "other")
    assert len(script.asked) == 1
