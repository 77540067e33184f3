"""A broker, an engine and a role for gateways that run as processes of their own, and their callers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ratchet.bus.connection import Bus
from ratchet.core.service.settings import SharedSettings
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_scene import ROLE, put_routes, version
from tests.support.running import connected
from tests.support.servers import Broker

BODY: dict[str, Any] = {"model": ROLE, "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class World:
    """A broker, an engine with two policies, and a role."""

    bus: Bus
    engine: FakeEngine
    engine_url: str
    nats: Broker
    folder: Path


@asynccontextmanager
async def world(nats: Broker, folder: Path) -> AsyncIterator[World]:
    engine = FakeEngine(resident={version(1).name, version(2).name})
    shared = SharedSettings(nats_url=nats.url, data_dir=folder)
    async with connected(shared) as bus, serving(engine) as engine_url:
        await put_routes(bus, **{ROLE: 1})
        yield World(bus, engine, engine_url, nats, folder)


async def call(http: httpx.AsyncClient, url: str, trajectory: str | None = None) -> httpx.Response:
    headers = {"x-ratchet-trajectory": trajectory} if trajectory else {}
    return await http.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)


async def answers(http: httpx.AsyncClient, url: str) -> bool:
    with suppress(httpx.TransportError):
        return (await call(http, url)).status_code == 200
    return False


async def has_asked(engine: FakeEngine, number: int) -> bool:
    """Whether the engine was asked so often."""
    return len(engine.asked) >= number


async def stored_turns(bus: Bus) -> list[str]:
    """Ids of the turns that the broker holds, once what the spool held is there too."""
    jetstream = bus.nc.jetstream()
    last = (await jetstream.stream_info("RL_TURNS")).state.last_seq
    stored = [await jetstream.get_msg("RL_TURNS", number) for number in range(1, last + 1)]
    return [(one.headers or {})["ce-id"] for one in stored]
