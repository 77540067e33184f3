"""Apps, components and clients that run for the length of a block, with the real servers behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.service.asgi import Find, JsonApi
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.runtime import App, Component
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse

PATIENCE_S = 60.0
"""httpx gives up after 5 s, which a busy machine may need."""


@asynccontextmanager
async def running(*components: Component) -> AsyncIterator[None]:
    """Run components for the length of a block; they stop in reverse order."""
    tasks = [asyncio.create_task(component.run()) for component in components]
    try:
        yield
    finally:
        for component, task in zip(reversed(components), reversed(tasks), strict=True):
            await component.stop()
            await asyncio.wait_for(task, 60)


@asynccontextmanager
async def listening(find: Find, body_bytes: int = 1 << 24) -> AsyncIterator[str]:
    """A server of these routes on a free port, once it listens; yields its URL."""
    server = HttpServer(JsonApi(find, body_bytes), "127.0.0.1", 0)
    async with running(server):
        await eventually(lambda: _accepts(server.port))
        yield f"http://127.0.0.1:{server.port}"


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def running_app(build: AbstractAsyncContextManager[App]) -> AsyncIterator[App]:
    """Build a service and run it for the length of a block, once it listens."""
    async with build as app, running(*app.components):
        for component in app.components:
            if isinstance(component, HttpServer):
                await eventually(partial(_accepts, component.port))
        yield app


@asynccontextmanager
async def connected(settings: SharedSettings, name: str = "test") -> AsyncIterator[Bus]:
    """A bus with all streams and buckets made."""
    bus = await Bus.connect(settings.bus, name=name, contracts=load_contracts())
    try:
        await bus.ensure_streams()
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def prepared_warehouse(settings: SharedSettings) -> AsyncIterator[Warehouse]:
    """A warehouse with all tables made."""
    warehouse = await Warehouse.connect(settings)
    try:
        await warehouse.make_tables()
        yield warehouse
    finally:
        await warehouse.close()


def prepared_objects(settings: SharedSettings) -> Objects:
    """An object store with its bucket made."""
    objects = Objects(settings)
    objects.ensure_bucket()
    return objects


def http_client(**options: Any) -> httpx.AsyncClient:
    """A client that waits as long as a busy machine needs, and knows no TLS: reading authorities takes .08 s of the
    processor. `options` are httpx's."""
    return httpx.AsyncClient(timeout=PATIENCE_S, verify=False, **options)


async def forgetful() -> None:
    """Never ends by itself, and loses its first cancel, as a request of nats-py may before Python 3.12."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()
