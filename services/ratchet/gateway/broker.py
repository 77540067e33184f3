"""The connection to the broker, made in the background: meanwhile the gateway serves what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ratchet.bus.connection import Bus
from ratchet.bus.tasks import end


class Broker:
    """Connects once, however long that takes, and closes the connection in the end."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        self._connect = connect
        self._bus: asyncio.Future[Bus] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()

    async def bus(self) -> Bus:
        """The connection, once there is one."""
        return await asyncio.shield(self._bus)

    async def run(self) -> None:
        """Hold the connection until stopped."""
        connecting = asyncio.ensure_future(self._connect())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            await end(connecting)
            if connecting.cancelled() or connecting.exception() is not None:
                return
        bus = connecting.result()
        self._bus.set_result(bus)
        await stopping
        await bus.close()

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def check(self) -> str | None:
        """Readiness: None while connected, else the reason."""
        return await self._bus.result().check() if self._bus.done() else "broker is not connected"
