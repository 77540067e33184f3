"""A scripted judge behind OpenAI's API, and budgets and answers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.judging.chat_judge import Answer, ChatJudge
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.service.asgi import Answer as HttpAnswer, Handler, Request, json_response
from ratchet.core.service.http_client import AsyncApiClient, Peer, Reply
from ratchet.core.service.paid_client import PaidClient, Settle
from tests.support.running import listening

Script = Callable[[dict[str, Any]], str | int | None]
"""What a judge replies to the body of a question; a number is an error's status."""


@dataclass
class JudgeServer:
    """A server of OpenAI's API that replies what its script says, one reply after the other or by the question."""

    script: list[str | int | None] | Script
    usage: dict[str, int] | None = None
    refuses: Sequence[str] = ()
    """Members of a question that it refuses by name, as models do which reason."""
    hangs: bool = False
    """It takes a question and does not answer."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def was_asked(self) -> bool:
        return bool(self.asked)

    def find(self, method: str, path: str) -> Handler:
        assert (method, path) == ("POST", "/v1/chat/completions")
        return self.chat

    async def chat(self, request: Request) -> HttpAnswer:
        body = request.json_object()
        self.asked.append(body)
        if self.hangs:
            await self.closed.wait()
            return json_response({}, 503)
        for name in self.refuses:
            if name in body:
                error = {"message": f"Unsupported parameter: '{name}'", "param": name, "code": "unsupported_parameter"}
                return json_response({"error": error}, 400)
        reply = self.script.pop(0) if isinstance(self.script, list) else self.script(body)
        if isinstance(reply, int):
            return json_response({"error": {"message": "slowly, please"}}, reply)
        message = {"role": "assistant", "content": reply}
        completion: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return json_response(completion | ({"usage": self.usage} if self.usage else {}) | {"model": "big-2026"})


@asynccontextmanager
async def listening_judge(script: JudgeServer) -> AsyncGenerator[str]:
    """The url of a judge's server, `/v1` included."""
    async with listening(script.find) as url:
        try:
            yield f"{url}/v1"
        finally:
            script.closed.set()


class Purse:
    """`paid_client.Ledger`: what was reserved and used, without a bound."""

    def __init__(self) -> None:
        self.reserved: list[Amounts] = []
        self.used: list[Amounts] = []

    async def reserve(self, most: Amounts) -> Settle:
        self.reserved.append(most)

        async def settle(used: Amounts) -> None:
            self.used.append(used)

        return settle


class Replying:
    """`Exchanging`: replies to the text of each question, or raises what the script returns."""

    def __init__(self, script: Callable[[str], str | Exception]) -> None:
        self._script = script
        self.asked: list[str] = []

    async def exchange(self, method: str, path: str, *, body: dict[str, Any]) -> Reply:
        question = body["messages"][1]["content"]
        self.asked.append(question)
        reply = self._script(question)
        if isinstance(reply, Exception):
            raise reply
        completion = {"choices": [{"message": {"content": reply}}], "model": "big-2026"}
        return Reply(200, msgspec.json.encode(completion), {})

    def content_of(self, reply: Reply) -> bytes:
        return reply.content


class KeptAnswers(dict[str, Answer]):
    """`Answers` in memory."""

    async def get(self, digest: str) -> Answer | None:  # type: ignore[override]
        return dict.get(self, digest)

    async def put(self, digest: str, answer: Answer) -> None:
        self[digest] = answer


@asynccontextmanager
async def judge_of(
    script: JudgeServer,
    profile: JudgeProfile | None = None,
    answers: KeptAnswers | None = None,
    timeout_s: float = 30.0,
) -> AsyncGenerator[tuple[ChatJudge, Purse]]:
    """A judge that asks the scripted server, and what it pays."""
    purse = Purse()
    async with (
        listening_judge(script) as url,
        AsyncApiClient(Peer("the judge", url, timeout_s=timeout_s, answer_bytes=1 << 20)) as http,
    ):
        client = PaidClient(http, purse, None)
        yield ChatJudge(client, profile or JudgeProfile("big"), answers, pauses_s=(0.0, 0.0)), purse
