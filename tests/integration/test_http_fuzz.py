"""Every HTTP route answers every request: with a result, or with an error that says what is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ratchet.bus.testing import eventually
from ratchet.canary_deployer.app import build as build_deployer
from ratchet.cli.interfaces import Interface
from ratchet.core.service.settings import SharedSettings
from tests.support.canary_stage import stage
from tests.support.consoles import consoling
from tests.support.coordinator import Workshop, coordinating
from tests.support.engine_process import publish, running_engine
from tests.support.gateway_scene import scene
from tests.support.http_fuzz import fuzzed, fuzzed_live, unreached
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import Broker, RunningServer
from tests.support.service_process import service_process
from tests.support.workflow_scene import workflow_scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENDLESS = frozenset({"GET /v1/events"})
"""A stream ends with its listener: it has tests of its own."""


@asynccontextmanager
async def coordinator(shared: SharedSettings) -> AsyncIterator[Workshop]:
    """A coordinator that answers."""
    prepared_objects(shared)
    async with (
        prepared_warehouse(shared),
        connected(shared) as bus,
        coordinating(shared, bus) as here,
    ):
        await eventually(lambda: _answers(here.api))
        yield here


async def test_gateway_and_the_routes_that_it_forwards(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    async with (
        coordinator(shared_settings) as there,
        scene(nats, tmp_path, coordinator_url=str(there.api.base_url)) as here,
    ):
        statuses = await fuzzed(Interface.GATEWAY, here.url)
    assert {*unreached(statuses)} <= {"GET /v1/bundle"}  # no role has a bundle here
    assert len(statuses) >= 10


async def test_deployer(nats: Broker, s3: RunningServer, tmp_path: Path) -> None:
    async with stage(nats, s3, tmp_path) as here, running_app(build_deployer(here.settings)):
        statuses = await fuzzed_live(f"http://127.0.0.1:{here.settings.port}")
    assert unreached(statuses) == []
    assert len(statuses) >= 7


async def test_coordinator(shared_settings: SharedSettings) -> None:
    async with coordinator(shared_settings) as here:
        statuses = await fuzzed_live(str(here.api.base_url))
    assert unreached(statuses) == []
    assert len(statuses) >= 8


async def test_workflows(nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service() as client:
        statuses = await fuzzed_live(str(client.base_url).rstrip("/"))
    assert unreached(statuses) == []
    assert len(statuses) >= 9


async def test_analyst(shared_settings: SharedSettings, tmp_path: Path) -> None:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings):
        with service_process("analyst", shared_settings, tmp_path) as analyst:
            statuses = await fuzzed_live(analyst.url)
    assert unreached(statuses) == []
    assert len(statuses) >= 6


async def test_engine(shared_settings: SharedSettings, tmp_path: Path) -> None:
    publish(shared_settings, tmp_path, "support")
    with running_engine(shared_settings, tmp_path) as engine:
        statuses = await fuzzed(Interface.ENGINE, engine.url)
    assert unreached(statuses) == []
    assert len(statuses) >= 5


async def test_console(shared_settings: SharedSettings) -> None:
    async with (
        coordinator(shared_settings) as there,
        consoling(shared_settings, coordinator_url=str(there.api.base_url)) as here,
    ):
        statuses = await fuzzed(Interface.CONSOLE, str(here.base_url).rstrip("/"), apart_from=ENDLESS)
    assert unreached(statuses) == []
    assert len(statuses) >= 15


async def _answers(api: httpx.AsyncClient) -> bool:
    try:
        return (await api.get("/health")).is_success
    except httpx.TransportError:
        return False
