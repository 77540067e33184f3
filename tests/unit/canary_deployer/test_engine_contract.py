"""What every engine has to do for the gates: the same for the reference in memory and for vLLM's API over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from ratchet.canary_deployer.gates.base import Engine
from ratchet.canary_deployer.http_clients import HttpEngine, engine_peer
from ratchet.errors import Rejected
from ratchet.service.http_client import AsyncApiClient
from tests.support.canary_traffic import SmallEngine
from tests.support.canary_world import policy
from tests.support.memory_engine import MemoryEngine


@dataclass(frozen=True)
class Subject:
    """An engine under test, and what a test does to it from behind."""

    engine: Engine
    loads: Callable[[], int]
    spoil: Callable[[int], None]
    """Make a version's files fail to verify."""


@pytest_asyncio.fixture(params=["memory", "http"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "memory":
        memory = MemoryEngine()
        yield Subject(memory, lambda: memory.loads, lambda version: memory.broken.add(policy(version).digest))
        return
    served = SmallEngine()
    async with AsyncApiClient(engine_peer("http://engine", None), httpx.ASGITransport(served.app)) as client:
        engine = HttpEngine(client, load_timeout_s=5)
        yield Subject(engine, lambda: len(served.resident), lambda version: served.broken.add(policy(version).name))


async def test_a_policy_is_loaded_once_however_often_it_is_asked_for(subject: Subject) -> None:
    await subject.engine.resolve(policy(1))
    await subject.engine.resolve(policy(1))
    assert subject.loads() == 1


async def test_versions_are_resident_side_by_side(subject: Subject) -> None:
    await subject.engine.resolve(policy(1))
    await subject.engine.resolve(policy(2))
    assert subject.loads() == 2
    for version in (1, 2):
        answer = await subject.engine.ask(policy(version), "hello there")
        assert answer.logprobs
        assert all(value is not None and value <= 0 for value in answer.logprobs)


async def test_a_policy_that_does_not_verify_is_refused_and_does_not_answer(subject: Subject) -> None:
    subject.spoil(3)
    with pytest.raises(Rejected, match="differs"):
        await subject.engine.resolve(policy(3))
    with pytest.raises(Rejected):
        await subject.engine.ask(policy(3), "hello")


async def test_a_policy_that_no_one_has_asked_for_before_answers(subject: Subject) -> None:
    assert (await subject.engine.ask(policy(1), "hello")).logprobs
    assert subject.loads() == 1
