"""Two replicas of the local engine under load: one is killed, and only agents that were reading its streams notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings
from tests.support.consuming import messages_of
from tests.support.engine_process import AT, Published, publish, running_engine
from tests.support.running import connected, running_app
from tests.support.servers import Broker, RunningServer, s3_settings

pytestmark = pytest.mark.slow

ROLE = "helpdesk"
CALLERS = 6
CALLS = 4
"""Of each caller before the kill, and after it."""


@dataclass
class Load:
    """Callers, every second of whom streams, and what became of their calls."""

    client: openai.AsyncOpenAI
    outcomes: Counter[str] = field(default_factory=Counter[str])
    calls: int = 0

    async def call(self, number: int) -> None:
        """One call of a new trajectory."""
        self.calls += 1
        asked: dict[str, Any] = {"model": ROLE, "messages": [{"role": "user", "content": f"where is order K{number}"}]}
        begun = False
        try:
            if number % 2:
                await self.client.chat.completions.create(**asked, max_tokens=24)
            else:
                async for chunk in await self.client.chat.completions.create(**asked, max_tokens=24, stream=True):
                    begun = begun or bool(chunk.choices)
            self.outcomes["answered"] += 1
        except openai.OpenAIError as error:
            self.outcomes["broken after it had begun" if begun else f"failed: {error}"] += 1

    async def until(self, stopped: asyncio.Event, number: int) -> None:
        while not stopped.is_set():
            await self.call(number)

    async def more(self, answered: int) -> None:
        """Wait for so many further answers."""
        before = self.outcomes["answered"]
        await eventually(lambda: self._has(before + answered))

    async def _has(self, answered: int) -> bool:
        return self.outcomes["answered"] >= answered


@asynccontextmanager
async def gateway(
    shared: SharedSettings, published: Published, engines: list[RunningServer]
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Any]]:
    digest = published.adapter.digest
    name = policy_name(ROLE, 1, digest)
    made = PolicyVersion(
        role=ROLE,
        version=1,
        name=name,
        digest=digest,
        uri=published.adapter.uri,
        kind="adapter",
        base_model=published.model.uri,
        created_at=AT,
        stage=PolicyStage.STABLE,
    )
    async with connected(shared) as bus:
        await Bucket(bus, "policies", PolicyVersion).put(f"{ROLE}.1", made)
        stable = ServedPolicy(version=1, name=name, digest=digest)
        await Bucket(bus, "policies", Route).put(ROLE, Route(role=ROLE, stable=stable, next_version=2))
        urls = ",".join(one.url for one in engines)
        settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=urls)
        async with running_app(build(settings)) as app:
            url = f"http://127.0.0.1:{app.components[-1].port}/v1"  # type: ignore[attr-defined]
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
                await eventually(lambda: _serves(client))
                yield client, bus


async def test_a_killed_replica_costs_only_the_streams_that_it_had_begun(
    nats: Broker, s3: RunningServer, tmp_path: Path
) -> None:
    store = s3_settings(s3, "engine-replicas-test")
    published = publish(store, tmp_path / "published", ROLE)
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    with (
        running_engine(store, tmp_path / "one") as one,
        running_engine(store, tmp_path / "two") as two,
    ):
        async with gateway(shared, published, [one, two]) as (client, bus):
            load, stopped = Load(client), asyncio.Event()
            callers = [asyncio.create_task(load.until(stopped, number)) for number in range(CALLERS)]
            await load.more(CALLERS * CALLS)
            one.kill()
            await load.more(CALLERS * CALLS)
            stopped.set()
            await asyncio.gather(*callers)
            turns = await _turns(bus, load.calls)
    assert set(load.outcomes) <= {"answered", "broken after it had begun"}, load.outcomes
    assert load.outcomes["broken after it had begun"] <= CALLERS // 2
    replicas = {url.removeprefix("http://") for url in (one.url, two.url)}
    assert {turn.engine.replica for turn in turns} == replicas
    assert [turn.error is not None for turn in turns].count(True) == load.outcomes["broken after it had begun"]


async def _serves(client: openai.AsyncOpenAI) -> bool:
    return ROLE in [model.id async for model in client.models.list()]


async def _turns(bus: Any, number: int) -> list[Turn]:
    async def probe() -> list[Turn]:
        turns = await messages_of(bus, Turn)
        return turns if len(turns) >= number else []

    return await eventually(probe)
