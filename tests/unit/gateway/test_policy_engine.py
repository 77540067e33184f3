"""A restarted engine has forgotten its policies: the gateway loads each once, however many calls wait for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.forms import CHAT
from ratchet.gateway.domain.requests import read_fields
from ratchet.gateway.engines.base import CallRefused, EngineFailed, EventReply, Reply
from ratchet.gateway.engines.policies import PolicyEngine
from ratchet.service.asgi import Headers
from tests.support.gateway_scene import ROLE, served, version

CALL = CHAT.read(read_fields(msgspec.json.encode({"model": ROLE, "messages": [{"role": "user", "content": "hi"}]})))


def body_of(policy: str) -> bytes:
    return msgspec.json.encode({"by": policy})


def error_body(message: str, **members: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **members}})


@dataclass
class Engine:
    """Loads when a test lets it; refuses a second load of a policy, as vLLM does."""

    loads: list[str] = field(default_factory=list[str])
    resident: set[str] = field(default_factory=set[str])
    loading: asyncio.Event = field(default_factory=asyncio.Event)
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Reply | None = None
    reply: Reply | None = None
    """Its reply to every call for a policy that it holds."""

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> Reply:
        asked = msgspec.json.decode(body)
        if path != "/v1/load_lora_adapter":
            reply = self.reply or Reply(200, body_of(asked["model"]))
            return reply if asked["model"] in self.resident else Reply(404, b"")
        name = asked["lora_name"]
        self.loads.append(name)
        self.loading.set()
        await self.may_load.wait()
        if self.refusal is not None:
            return self.refusal
        if name in self.resident:
            return Reply(400, error_body("has already been loaded"))
        self.resident.add(name)
        return Reply(200, b"loaded")

    async def stream(self, path: str, body: bytes, headers: Headers = ()) -> Reply | EventReply:
        return await self.post(path, body, headers)

    def asking(self, number: int = 1) -> asyncio.Task[Any]:
        return asyncio.create_task(self._asked(number))

    async def _asked(self, number: int) -> bytes:
        reply = (await self.front.ask(CHAT, CALL, served(number), ROLE)).reply
        assert isinstance(reply, Reply)
        return reply.raw

    def __post_init__(self) -> None:
        async def find(_: str, number: int) -> PolicyVersion:
            return version(number)

        self.front = PolicyEngine(self, EngineInfo(name="vllm"), find)


async def test_many_calls_for_a_forgotten_policy_load_it_once() -> None:
    engine = Engine()
    calls = [engine.asking() for _ in range(5)]
    other = engine.asking(2)
    await engine.loading.wait()
    engine.may_load.set()
    assert await asyncio.gather(*calls) == [body_of(version(1).name)] * 5
    assert await other == body_of(version(2).name)
    assert sorted(engine.loads) == [version(1).name, version(2).name]


async def test_a_load_goes_on_for_the_other_agents_when_the_first_one_disconnects() -> None:
    engine = Engine()
    first = engine.asking()
    await engine.loading.wait()
    second = engine.asking()
    first.cancel()
    await asyncio.wait({first})
    engine.may_load.set()
    assert await second == body_of(version(1).name)
    assert len(engine.loads) == 1


async def test_a_policy_that_another_gateway_has_loaded_meanwhile_answers() -> None:
    engine = Engine()
    call = engine.asking()
    await engine.loading.wait()
    engine.resident.add(version(1).name)
    engine.may_load.set()
    assert await call == body_of(version(1).name)


async def test_a_refused_load_fails_all_waiting_calls_and_the_next_call_tries_again() -> None:
    engine = Engine(refusal=Reply(422, error_body("wrong bytes")))
    engine.may_load.set()
    for failure in await asyncio.gather(engine.asking(), engine.asking(), return_exceptions=True):
        assert isinstance(failure, EngineFailed)
        assert "wrong bytes" in str(failure)
    engine.refusal = None
    assert await engine.asking() == body_of(version(1).name)


@pytest.mark.parametrize("status", [408, 429])
async def test_a_busy_engine_has_failed_so_that_another_one_may_answer(status: int) -> None:
    engine = Engine(resident={version(1).name}, reply=Reply(status, error_body("slow down")))
    with pytest.raises(EngineFailed, match="slow down") as failed:
        await engine.asking()
    assert failed.value.status == status


async def test_the_agent_of_a_refused_call_gets_the_words_of_the_engine() -> None:
    refusal = error_body("too long", code="context_length_exceeded")
    engine = Engine(resident={version(1).name}, reply=Reply(400, refusal))
    with pytest.raises(CallRefused, match="too long") as refused:
        await engine.asking()
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


async def test_a_prompt_that_vllm_finds_too_long_has_the_code_that_agents_look_for() -> None:
    problem = {"message": "This model's maximum context length is 512 tokens.", "type": "BadRequestError", "code": 400}
    engine = Engine(resident={version(1).name}, reply=Reply(400, msgspec.json.encode({"error": problem})))
    with pytest.raises(CallRefused) as refused:
        await engine.asking()
    assert (refused.value.code, refused.value.relayed) == ("context_length_exceeded", None)
    assert str(refused.value) == problem["message"]
