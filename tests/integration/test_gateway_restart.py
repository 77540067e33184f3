"""A gateway that starts while the broker is dead serves the routes on its disk, no canary, and loses no turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import uuid_utils

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Start, Turn
from ratchet.core.contract.state import Route
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build
from ratchet.gateway.peer_sync import PeerSync
from ratchet.gateway.settings import Constants, Settings
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_alone import InThisProcess
from tests.support.gateway_scene import ROLE, Scene, ask, canary_route, put_routes, version
from tests.support.running import connected, running_app
from tests.support.servers import Broker, RunningServer


@asynccontextmanager
async def gateway(settings: Settings, **constants: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, App]]:
    """A gateway and its client, once it serves the role."""
    async with running_app(build(settings, InThisProcess(), Constants(**constants))) as app:
        port: int = app.components[-1].port  # type: ignore[attr-defined]
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def serves() -> bool:
                return ROLE in [model.id async for model in client.models.list()]

            await eventually(serves)
            yield client, app


@pytest.mark.own_broker
async def test_gateway_started_without_its_broker_serves_stable_and_keeps_turns(
    nats: RunningServer, tmp_path: Path
) -> None:
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    engine = FakeEngine(resident={version(1).name, version(2).name})
    async with connected(shared) as bus, serving(engine) as engine_url:
        await put_routes(bus, **{ROLE: 1})
        settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine_url)
        async with gateway(settings, close_s=0.5) as (client, app):
            await offer_canary(bus, lease=1)
            await eventually(lambda: listed(client, f"{ROLE}@2"))
            assert (await ask_once(client, "before")).headers["x-ratchet-arm"] == "canary"
        await asyncio.to_thread(nats.kill)
        engine.resident.clear()
        async with gateway(settings, close_s=0.5) as (client, app):
            assert await app.notes["broker"]() == "the broker is not connected"
            answer = await ask_once(client, "during")
            assert answer.headers["x-ratchet-arm"] == "stable"
            assert answer.headers["x-ratchet-policy"] == version(1).name
            assert engine.loads == [version(1).name]
            with pytest.raises(openai.NotFoundError):
                await ask(client, [{"role": "user", "content": "hi"}], model="nobody")
        async with gateway(settings, close_s=0.5) as (client, app):
            await ask_once(client, "again")
            await asyncio.to_thread(nats.start)
            turns = await Scene("", engine, bus, app).published(Turn, 3)
            assert [turn.messages[0]["content"] for turn in turns] == ["before", "during", "again"]
            assert [turn.policy.arm for turn in turns] == ["canary", "stable", "stable"]

            async def healed() -> bool:
                return await app.notes["broker"]() is None

            await eventually(healed)
            await eventually(lambda: listed(client, f"{ROLE}@2"))
            assert (await ask_once(client, "after")).headers["x-ratchet-arm"] == "stable"
            engine.resident.add(version(2).name)
            await offer_canary(bus, lease=2)

            async def renewed() -> bool:
                return (await ask_once(client, "renewed")).headers["x-ratchet-arm"] == "canary"

            await eventually(renewed)


async def test_restarted_canary_trajectory_without_lease_goes_on_with_stable(nats: Broker, tmp_path: Path) -> None:
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    engine = FakeEngine(resident={version(1).name, version(2).name})
    trajectory = {"x-ratchet-trajectory": str(uuid_utils.uuid7())}
    async with connected(shared) as bus, serving(engine) as engine_url:
        await put_routes(bus, **{ROLE: 1})
        settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine_url)
        async with gateway(settings) as (client, app):
            await offer_canary(bus, lease=1)
            await eventually(lambda: listed(client, f"{ROLE}@2"))
            begun = await ask(client, [{"role": "user", "content": "hi"}], extra_headers=trajectory)
        async with gateway(settings) as (client, app):
            await eventually(lambda: listed(client, f"{ROLE}@2"))
            await eventually(lambda: knows_of_others(app))
            gone_on = await ask(client, [{"role": "user", "content": "hi"}], extra_headers=trajectory)
            here = Scene("", engine, bus, app)
            turns = await here.published(Turn, 2)
            starts = await here.published(Start, 1)
    assert [answer.headers["x-ratchet-arm"] for answer in (begun, gone_on)] == ["canary", "mixed"]
    assert [(turn.policy.arm, turn.policy.version) for turn in turns] == [("canary", 2), ("mixed", 1)]
    assert [(start.policy.arm, start.policy.version) for start in starts] == [("canary", 2)]


async def knows_of_others(app: App) -> bool:
    """Whether it has read the notes of the gateway that it replaces."""
    return any(part.has_others for part in app.components if isinstance(part, PeerSync))


@pytest.mark.own_broker
async def test_a_canary_that_cannot_be_observed_is_not_served(nats: RunningServer, tmp_path: Path) -> None:
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    engine = FakeEngine(resident={version(1).name, version(2).name})
    async with connected(shared) as bus, serving(engine) as engine_url:
        await put_routes(bus, **{ROLE: 1})
        settings = Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine_url)
        async with gateway(settings, queue_limit=2, spool_bytes=0) as (client, _):
            await offer_canary(bus, lease=1)
            await eventually(lambda: listed(client, f"{ROLE}@2"))
            assert (await ask_once(client, "seen")).headers["x-ratchet-arm"] == "canary"
            await asyncio.to_thread(nats.kill)

            async def blind() -> bool:
                return (await ask_once(client, "unseen")).headers["x-ratchet-arm"] == "stable"

            began = time.monotonic()
            await eventually(blind)
            assert time.monotonic() - began < Constants().lease_s, "the lease ended the canary, not the lost messages"


async def test_unreadable_entries_are_reported_and_everything_else_is_served(nats: Broker, tmp_path: Path) -> None:
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "gateway")
    engine = FakeEngine(resident={version(1).name})
    async with connected(shared) as bus, serving(engine) as engine_url:
        await put_routes(bus, **{ROLE: 1})
        async with gateway(Settings(shared=shared, port=0, grace_s=0.0, engine_url=engine_url)) as (client, app):
            bucket = await bus.nc.jetstream().key_value("policies")
            await bucket.put("other", b"no json")
            await bucket.put(f"{ROLE}.2", b'{"role": 7}')
            with pytest.raises(openai.InternalServerError, match=rf"{ROLE}\.2 cannot be read") as refused:
                await ask(client, [{"role": "user", "content": "hi"}], model=f"{ROLE}@2")
            assert (refused.value.status_code, refused.value.code) == (503, "unavailable")

            async def reported() -> bool:
                fault = await app.notes["canaries"]() or ""
                return "other cannot be read" in fault and f"{ROLE}.2 cannot be read" in fault

            await eventually(reported)
            assert (await ask_once(client, "hi")).headers["x-ratchet-policy"] == version(1).name
            await put_routes(bus, another=1)
            await eventually(lambda: listed(client, "another"))
            await bucket.delete(f"{ROLE}.2")
            await put_routes(bus, other=1)
            await eventually(lambda: listed(client, "other"))
            assert await app.notes["canaries"]() is None


async def offer_canary(bus: Bus, lease: int) -> None:
    canary = canary_route(lease=lease)
    await Bucket(bus, "policies", Route).change(
        ROLE, lambda old: msgspec.structs.replace(old or Route(role=ROLE), canary=canary)
    )


async def listed(client: openai.AsyncOpenAI, role: str) -> bool:
    return role in [model.id async for model in client.models.list()]


async def ask_once(client: openai.AsyncOpenAI, text: str) -> Any:
    return await ask(client, [{"role": "user", "content": text}])
