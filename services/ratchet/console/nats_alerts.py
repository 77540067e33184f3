"""The alerts that were raised within the last day and hold still, followed in their stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.tasks import UntilStopped
from ratchet.console.domain.alerts import Firing
from ratchet.console.domain.attention import RECENTLY
from ratchet.core.contract import Alert
from ratchet.core.errors import BusUnavailable, ContractError

log = structlog.get_logger()

STREAM = "RL_ALERTS"
WAIT_S = 5.0
AGAIN_S = 1.0
"""Pause before the stream is read again that could not be read."""


class NatsAlerts:
    """Alerts of all services."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._firing = Firing()
        self._unread: str | None = f"{STREAM} is not read to its end yet"
        """Why it is not known which alerts hold."""
        self._working = UntilStopped()

    async def current(self) -> Sequence[Alert]:
        """Those that hold, oldest first. Raises `BusUnavailable` while their stream cannot be read."""
        if not self._bus.is_connected:
            raise BusUnavailable("the broker does not answer")
        if self._unread is not None:
            raise BusUnavailable(self._unread)
        return self._firing.at(self._bus.now())

    async def run(self) -> None:
        """Follow the stream until stopped."""
        await self._working.run(self._follow())

    async def stop(self) -> None:
        """Return from `run`."""
        self._working.stop()

    async def _follow(self) -> None:
        while True:
            try:
                await self._read(self._bus.now() - RECENTLY)
            except BusUnavailable as error:
                self._unread = str(error)
                log.debug("alerts wait for the broker", reason=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _read(self, since: datetime) -> None:
        """Read until the broker is away: then all of the day again, and what held before is not known to hold."""
        reader, firing = OrderedReader(self._bus, STREAM, start=since), Firing()
        try:
            await reader.open()
            there = (await reader.state()).total
            while True:
                if reader.count >= there:
                    self._firing, self._unread = firing, None
                for message in await reader.next(WAIT_S):
                    self._add(message, firing)
        finally:
            await reader.close()

    def _add(self, message: Msg, firing: Firing) -> None:
        try:
            alert = self._bus.read(message)[0].message
        except ContractError:  # its consumers make it a dead letter
            return
        if isinstance(alert, Alert):
            firing.add(alert)
