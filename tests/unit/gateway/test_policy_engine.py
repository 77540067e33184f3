"""An engine that restarted has forgotten its policies: each is loaded once, however many calls wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.chat import read_chat
from ratchet.gateway.domain.forms import CHAT
from ratchet.gateway.engines.base import CallRefused, EngineFailed, Reply
from ratchet.gateway.engines.policies import PolicyEngine
from tests.support.gateway_scene import ROLE, served, version

CALL = read_chat({"model": ROLE, "messages": [{"role": "user", "content": "hi"}]})


@dataclass
class Engine:
    """Loads when a test says so; a second load of a policy is refused, as by vLLM."""

    loads: list[str] = field(default_factory=list[str])
    resident: set[str] = field(default_factory=set[str])
    loading: asyncio.Event = field(default_factory=asyncio.Event)
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Reply | None = None
    saying: Reply | None = None
    """What it says to every call for a policy that it holds."""

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        if path != "/v1/load_lora_adapter":
            said = self.saying or Reply(200, {"by": body["model"]})
            return said if body["model"] in self.resident else Reply(404, None)
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

    def asked(self, number: int = 1) -> asyncio.Task[Any]:
        return asyncio.create_task(self.front.ask(CHAT, CALL, served(number)))

    def __post_init__(self) -> None:
        async def find(_: str, number: int) -> PolicyVersion:
            return version(number)

        self.front = PolicyEngine(self, EngineInfo(name="vllm"), find)


async def test_many_calls_for_a_policy_that_is_gone_load_it_once() -> None:
    engine = Engine()
    calls = [engine.asked() for _ in range(5)]
    other = engine.asked(2)
    await engine.loading.wait()
    engine.may_load.set()
    assert await asyncio.gather(*calls) == [Reply(200, {"by": version(1).name})] * 5
    assert await other == Reply(200, {"by": version(2).name})
    assert sorted(engine.loads) == [version(1).name, version(2).name]


async def test_a_load_goes_on_for_the_others_when_the_agent_that_began_it_goes_away() -> None:
    engine = Engine()
    first = engine.asked()
    await engine.loading.wait()
    second = engine.asked()
    first.cancel()
    await asyncio.wait({first})
    engine.may_load.set()
    assert await second == Reply(200, {"by": version(1).name})
    assert len(engine.loads) == 1


async def test_a_policy_that_somebody_else_has_loaded_meanwhile_is_asked() -> None:
    engine = Engine()
    call = engine.asked()
    await engine.loading.wait()
    engine.resident.add(version(1).name)
    engine.may_load.set()
    assert await call == Reply(200, {"by": version(1).name})


async def test_a_load_that_is_refused_is_told_to_all_and_tried_again_by_the_next_call() -> None:
    engine = Engine(refusal=Reply(422, {"error": {"message": "wrong bytes"}}))
    engine.may_load.set()
    for failure in await asyncio.gather(engine.asked(), engine.asked(), return_exceptions=True):
        assert isinstance(failure, EngineFailed)
        assert "wrong bytes" in str(failure)
    engine.refusal = None
    assert await engine.asked() == Reply(200, {"by": version(1).name})


@pytest.mark.parametrize("status", [408, 429])
async def test_a_busy_engine_has_failed_and_somebody_else_may_be_asked(status: int) -> None:
    engine = Engine(resident={version(1).name}, saying=Reply(status, {"error": {"message": "slow down"}}))
    with pytest.raises(EngineFailed, match="slow down") as failed:
        await engine.asked()
    assert failed.value.status == status


async def test_a_call_that_the_engine_refuses_is_refused_in_its_words() -> None:
    said = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    engine = Engine(resident={version(1).name}, saying=Reply(400, said))
    with pytest.raises(CallRefused, match="too long") as refused:
        await engine.asked()
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
