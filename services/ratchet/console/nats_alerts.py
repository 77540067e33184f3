"""The alerts that were raised within the last day and hold still, followed in their stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.tasks import UntilStopped
from ratchet.console.domain.alerts import Firing
from ratchet.console.domain.attention import RECENTLY
from ratchet.contract import Alert
from ratchet.errors import BusUnavailable, ContractError

log = structlog.get_logger()

STREAM = "RL_ALERTS"
WAIT_S = 5.0
AGAIN_S = 1.0
"""Pause before the stream is read again that could not be read."""


class NatsAlerts:
    """Alerts of all services. What was last read of them stays while the broker is away."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._firing = Firing()
        self._working = UntilStopped()

    def current(self) -> Sequence[Alert]:
        """Those that hold, oldest first."""
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
                log.debug("alerts wait for the broker", reason=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _read(self, since: datetime) -> None:
        """Read until the broker is away: then all of the day again, for an alert that is read twice is the same."""
        reader = OrderedReader(self._bus, STREAM, start=since)
        try:
            await reader.open()
            while True:
                for message in await reader.next(WAIT_S):
                    try:
                        alert = self._bus.read(message)[0].message
                    except ContractError:  # its consumers make it a dead letter
                        continue
                    if isinstance(alert, Alert):
                        self._firing.add(alert)
        finally:
            await reader.close()
