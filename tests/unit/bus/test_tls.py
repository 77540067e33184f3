"""An address that asks for TLS gets it: no credential is sent in clear text, whatever answers there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.nats_client import Connection
from ratchet.bus.testing import eventually
from ratchet.core.errors import ObjectsUnavailable, WarehouseUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse

HANDSHAKE = b"\x16\x03"
"""How a TLS client begins (RFC 8446, section 5.1)."""


@dataclass
class Listener:
    """A server that sends `greeting`, writes down what comes first, and hangs up."""

    greeting: bytes = b""
    port: int = 0
    heard: list[bytes] = field(default_factory=list[bytes])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(self.greeting)
            self.heard.append(await reader.read(2))
        writer.close()


@asynccontextmanager
async def listening(greeting: bytes = b"") -> AsyncIterator[Listener]:
    listener = Listener(greeting)
    server = await asyncio.start_server(listener.answer, "127.0.0.1", 0)
    async with server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
async def test_clickhouse_at_https_hears_no_password_in_clear_text(scheme: str) -> None:
    async with listening() as listener:
        url = f"{scheme}://user:password@127.0.0.1:{listener.port}"
        with pytest.raises(WarehouseUnavailable):
            await Warehouse.connect(SharedSettings(clickhouse_url=url))
        assert set(listener.heard) == {HANDSHAKE}


async def test_an_object_store_at_https_hears_no_key_in_clear_text() -> None:
    async with listening() as listener:
        objects = Objects(SharedSettings(s3_endpoint=f"https://127.0.0.1:{listener.port}", s3_secret_key="x"))
        with pytest.raises(ObjectsUnavailable):
            await asyncio.to_thread(objects.get, "s3://ratchet/key")
        assert set(listener.heard) == {HANDSHAKE}


@pytest.mark.parametrize(
    ("greeting", "heard"),
    [
        (b'INFO {"tls_required": true, "auth_required": true}\r\n', HANDSHAKE),
        (b'INFO {"auth_required": true}\r\n', b""),
    ],
    ids=["a broker with TLS", "one without"],
)
async def test_a_broker_at_tls_hears_no_credentials_in_clear_text(greeting: bytes, heard: bytes) -> None:
    failed = asyncio.get_running_loop().create_future()

    async def note(error: Exception) -> None:
        if not failed.done():
            failed.set_result(error)

    pace: dict[str, Any] = {"reconnect_time_wait": 0.01, "error_cb": note}
    async with listening(greeting) as listener:
        bus = Bus(Connection(), name="tls", contracts=load_contracts(), replicas=1)
        url = f"tls://user:password@127.0.0.1:{listener.port}"
        connecting = asyncio.create_task(bus.reach(SharedSettings().bus, url, **pace))
        error = await asyncio.wait_for(failed, 10)
        connecting.cancel()
        with suppress(asyncio.CancelledError, nats.errors.NoServersError):
            await connecting
        assert isinstance(error, nats.errors.SecureConnRequiredError) is (heard == b"")

        async def heard_it() -> bool:
            return bool(listener.heard)

        await eventually(heard_it)
        assert set(listener.heard) == {heard}


async def test_handshake_that_breaks_off_is_tried_again() -> None:
    async with listening(b'INFO {"tls_required": true}\r\n') as listener:
        bus = Bus(Connection(), name="tls", contracts=load_contracts(), replicas=1)
        with pytest.raises(nats.errors.NoServersError):
            await bus.reach(SharedSettings().bus, f"tls://127.0.0.1:{listener.port}", reconnect_time_wait=0.01)
        assert listener.heard == [HANDSHAKE] * len(listener.heard)
        assert len(listener.heard) > 1
