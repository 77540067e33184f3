"""What the gateway makes of the answers of an engine that finds policies by their names."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.contract.turn import EngineInfo
from ratchet.core.service.asgi import Headers
from ratchet.dialects.api_dialect import CHAT, ApiDialect
from ratchet.dialects.requests import read_fields
from ratchet.gateway.engines.base import CallRefused, EngineFailed, EventReply, Reply
from ratchet.gateway.engines.policies import PolicyEngine
from tests.support.gateway_scene import ROLE, served, version

CALL = CHAT.read(read_fields(msgspec.json.encode({"model": ROLE, "messages": [{"role": "user", "content": "hi"}]})))


class Engine:
    """Gives one reply to every call."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[tuple[str, str]] = []
        """Paths and models."""
        self.front = PolicyEngine(self, EngineInfo(name="vllm"))

    async def post(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply:
        self.near = near
        self.asked.append((path, msgspec.json.decode(body)["model"]))
        return self.reply

    async def stream(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply | EventReply:
        return await self.post(path, body, headers, near=near, dialect=dialect)

    async def ask(self) -> object:
        return (await self.front.ask(CHAT, CALL, served(1), ROLE)).reply


def error_body(message: str, **members: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **members}})


async def test_a_policy_is_asked_for_by_its_immutable_name() -> None:
    engine = Engine(Reply(200, b"{}"))
    assert await engine.ask() == engine.reply
    assert engine.asked == [("/v1/chat/completions", version(1).name)]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "The model does not exist."),
        (424, "rank 64 is above --max-lora-rank 32"),
        (400, "LoRA adapter 'x' was found but could not be loaded."),
    ],
)
async def test_a_policy_that_the_engine_cannot_serve_is_the_engines_failure(status: int, words: str) -> None:
    """So that stable may answer: the request is not to blame."""
    with pytest.raises(EngineFailed) as failed:
        await Engine(Reply(status, error_body(words))).ask()
    assert (failed.value.status, failed.value.code) == (502, "engine_unavailable")
    assert str(failed.value) == f"the engine cannot serve {version(1).name}: {words}"


@pytest.mark.parametrize("status", [408, 429])
async def test_a_busy_engine_has_failed_so_that_another_one_may_answer(status: int) -> None:
    engine = Engine(Reply(status, error_body("slow down")))
    with pytest.raises(EngineFailed, match="slow down") as failed:
        await engine.ask()
    assert failed.value.status == status


async def test_the_agent_of_a_refused_call_gets_the_words_of_the_engine() -> None:
    refusal = error_body("too long", code="context_length_exceeded")
    engine = Engine(Reply(400, refusal))
    with pytest.raises(CallRefused, match="too long") as refused:
        await engine.ask()
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


async def test_prompt_that_vllm_finds_too_long_has_the_code_that_agents_look_for() -> None:
    problem = {"message": "This model's maximum context length is 512 tokens.", "type": "BadRequestError", "code": 400}
    engine = Engine(Reply(400, msgspec.json.encode({"error": problem})))
    with pytest.raises(CallRefused) as refused:
        await engine.ask()
    assert (refused.value.code, refused.value.relayed) == ("context_length_exceeded", None)
    assert str(refused.value) == problem["message"]
