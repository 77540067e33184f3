"""A restarted engine has forgotten its policies: the gateway loads each once, however many calls wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.forms import CHAT, read_chat
from ratchet.gateway.engines.base import CallRefused, EngineFailed, Reply
from ratchet.gateway.engines.policies import PolicyEngine
from tests.support.gateway_scene import ROLE, served, version

CALL = read_chat({"model": ROLE, "messages": [{"role": "user", "content": "hi"}]})


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

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        if path != "/v1/load_lora_adapter":
            reply = self.reply or Reply(200, {"by": body["model"]})
            return reply if body["model"] in self.resident else Reply(404, None)
        name = body["lora_name"]
        self.loads.append(name)
        self.loading.set()
        await self.may_load.wait()
        if self.refusal is not None:
            return self.refusal
        if name in self.resident:
            return Reply(400, {"error": {"message": "has already been loaded"}})
        self.resident.add(name)
        return Reply(200, None)

    def asking(self, number: int = 1) -> asyncio.Task[Any]:
        return asyncio.create_task(self.front.ask(CHAT, CALL, served(number)))

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
    assert await asyncio.gather(*calls) == [Reply(200, {"by": version(1).name})] * 5
    assert await other == Reply(200, {"by": version(2).name})
    assert sorted(engine.loads) == [version(1).name, version(2).name]


async def test_a_load_goes_on_for_the_other_agents_when_the_first_one_disconnects() -> None:
    engine = Engine()
    first = engine.asking()
    await engine.loading.wait()
    second = engine.asking()
    first.cancel()
    await asyncio.wait({first})
    engine.may_load.set()
    assert await second == Reply(200, {"by": version(1).name})
    assert len(engine.loads) == 1


async def test_a_policy_that_another_gateway_has_loaded_meanwhile_answers() -> None:
    engine = Engine()
    call = engine.asking()
    await engine.loading.wait()
    engine.resident.add(version(1).name)
    engine.may_load.set()
    assert await call == Reply(200, {"by": version(1).name})


async def test_a_refused_load_fails_all_waiting_calls_and_the_next_call_tries_again() -> None:
    engine = Engine(refusal=Reply(422, {"error": {"message": "wrong bytes"}}))
    engine.may_load.set()
    for failure in await asyncio.gather(engine.asking(), engine.asking(), return_exceptions=True):
        assert isinstance(failure, EngineFailed)
        assert "wrong bytes" in str(failure)
    engine.refusal = None
    assert await engine.asking() == Reply(200, {"by": version(1).name})


@pytest.mark.parametrize("status", [408, 429])
async def test_a_busy_engine_has_failed_so_that_another_one_may_answer(status: int) -> None:
    engine = Engine(resident={version(1).name}, reply=Reply(status, {"error": {"message": "slow down"}}))
    with pytest.raises(EngineFailed, match="slow down") as failed:
        await engine.asking()
    assert failed.value.status == status


async def test_the_agent_of_a_refused_call_gets_the_words_of_the_engine() -> None:
    refusal = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    engine = Engine(resident={version(1).name}, reply=Reply(400, refusal))
    with pytest.raises(CallRefused, match="too long") as refused:
        await engine.asking()
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
