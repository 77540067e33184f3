"""A gateway as a process of its own: killed, starved of files, stopped by a signal, without its broker."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract.state import Route
from ratchet.core.errors import BusUnavailable
from tests.support.gateway_process import gateway_process, terminate
from tests.support.gateway_scene import ROLE, canary_route
from tests.support.gateway_world import answers, call, has_asked, stored_turns, world
from tests.support.running import http_client
from tests.support.servers import Broker, RunningServer
from tests.support.targets import note_target

pytestmark = pytest.mark.slow

FILES = 90
IDLE = 160
"""More connections than the process may open."""
NO_FILES = "no file and no connection can be opened: Too many open files"
AGENTS = 6
WRITTEN_S = 4.0
"""A turn of an answer that is older is in the broker or in the spool, also on a busy machine."""
STABLE_WITHIN_S = 4.0
"""The promise (C7 of docs/guarantees.md)."""


async def test_a_gateway_without_files_reports_it_and_recovers(nats: Broker, tmp_path: Path) -> None:
    many = {"RATCHET_GATEWAY_CONNECTIONS": "1000", "RATCHET_GATEWAY_CONNECTIONS_PER_ADDRESS": "1000"}
    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path, files=FILES, **many) as gateway:
            await eventually(lambda: answers(http, gateway.url))
            assert await _reasons(http, gateway) == {}  # and its connection stays open while it is used
            async with idle_connections(gateway.program.port):

                async def red() -> bool:
                    return await _reasons(http, gateway) == {"files": NO_FILES}

                await eventually(red)
            await eventually(lambda: answers(http, gateway.url))

            async def ready_again() -> bool:
                return await _reasons(http, gateway) == {}

            await eventually(ready_again)


@asynccontextmanager
async def idle_connections(port: int) -> AsyncIterator[None]:
    """More connections than the process may open; the system queues those that it cannot take."""
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(IDLE)]
    try:
        yield
    finally:
        for _, writer in idle:
            writer.close()


async def _reasons(http: httpx.AsyncClient, gateway: RunningServer) -> dict[str, str]:
    """Why it is not ready."""
    reasons: dict[str, str] = (await http.get(gateway.program.ready_url)).json()["reasons"]
    return reasons


async def test_readiness_is_false_first_and_calls_under_way_end(nats: Broker, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path, RATCHET_GATEWAY_GRACE_S="4") as gateway:
            await eventually(lambda: answers(http, gateway.url))
            here.engine.at_work.clear()
            before = len(here.engine.asked)
            asking = asyncio.create_task(call(http, gateway.url))
            await eventually(lambda: has_asked(here.engine, before + 1))
            terminate(gateway)

            async def stopping() -> bool:
                return (await http.get(gateway.program.ready_url)).status_code == 503

            await eventually(stopping)
            late = asyncio.create_task(call(http, gateway.url))
            await eventually(lambda: has_asked(here.engine, before + 2))
            here.engine.at_work.set()
            assert [(await one).status_code for one in (asking, late)] == [200, 200]


async def test_a_kill_under_traffic_loses_at_most_the_turns_of_the_last_moments(nats: Broker, tmp_path: Path) -> None:
    answered: dict[str, float] = {}

    async def agent(http: httpx.AsyncClient, url: str) -> None:
        with suppress(httpx.TransportError):
            while True:
                trajectory = str(uuid.uuid4())
                for _ in range(3):
                    answer = await call(http, url, trajectory)
                    answered[answer.headers["x-ratchet-turn"]] = time.monotonic()

    async with world(nats, tmp_path) as here:
        with gateway_process(nats.url, here.engine_url, tmp_path) as gateway:
            async with http_client() as http:
                agents = [asyncio.create_task(agent(http, gateway.url)) for _ in range(AGENTS)]
                await eventually(lambda: _has(answered, 300))
                await asyncio.to_thread(gateway.kill)
                killed = time.monotonic()
                await asyncio.gather(*agents)
            await asyncio.to_thread(gateway.start)
            async with http_client() as http:
                await eventually(lambda: answers(http, gateway.url))
        stored = await stored_turns(here.bus)
    lost = {turn: killed - at for turn, at in answered.items() if turn not in stored}
    assert max(lost.values(), default=0.0) < WRITTEN_S, f"of {len(answered)} answered calls {len(lost)} have no turn"
    assert len(stored) == len(set(stored))


@pytest.mark.own_broker
async def test_rollback_reaches_a_gateway_whose_broker_was_killed_in_time(nats: RunningServer, tmp_path: Path) -> None:
    async with world(nats, tmp_path) as here, http_client() as http:
        with gateway_process(nats.url, here.engine_url, tmp_path) as gateway:
            await eventually(lambda: answers(http, gateway.url))
            for lease in range(1, 4):
                await offer(here.bus, lease)
                await eventually(lambda: _serves_arm(http, gateway.url, "canary"))
                await asyncio.to_thread(nats.kill)
                await asyncio.to_thread(nats.start)
                await eventually(lambda: _reaches_broker(http, gateway))
                await eventually(lambda: _written(offer(here.bus, None)))
                written = time.monotonic()
                await eventually(lambda: _serves_arm(http, gateway.url, "stable"))
                passed = time.monotonic() - written
                note_target("rollback", passed)
                assert passed < STABLE_WITHIN_S


async def offer(bus: Bus, lease: int | None) -> None:
    """A canary that takes all traffic, or none."""
    canary = canary_route(lease=lease) if lease is not None else None
    routes = Bucket(bus, "policies", Route)
    await routes.change(ROLE, lambda old: msgspec.structs.replace(old or Route(role=ROLE), canary=canary))


async def _written(writing: Any) -> bool:
    with suppress(BusUnavailable):
        await writing
        return True
    return False


async def _reaches_broker(http: httpx.AsyncClient, gateway: RunningServer) -> bool:
    return "broker" not in (await http.get(gateway.program.ready_url)).json()["notes"]


async def _serves_arm(http: httpx.AsyncClient, url: str, arm: str) -> bool:
    return (await call(http, url)).headers.get("x-ratchet-arm") == arm


async def _has(answered: dict[str, float], number: int) -> bool:
    return len(answered) >= number
