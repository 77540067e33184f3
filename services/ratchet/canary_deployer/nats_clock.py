"""What a deployer calls now: the broker's clock, on which deployers agree whose own clocks do not.

From when on a weight holds stands in the route, and gateways compare it with the instants in trajectories' ids. By a
clock that runs two days ahead a canary would get its traffic in two days.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from ratchet.bus.connection import Bus
from ratchet.contract import Start
from ratchet.errors import BusUnavailable

LOOK_S = 10.0
"""How often the broker is asked; in between the monotonic clock goes on."""
SHARP_S = 1.0
"""An answer that took longer says too little, once another is known."""


class _Told(msgspec.Struct):
    """The part of the broker's answer about a stream that says when it was given."""

    ts: datetime


class BrokerClock:
    """A component, and a function without arguments: the present instant."""

    def __init__(self, bus: Bus, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._monotonic = monotonic
        self._stream = bus.contracts.topics[Start.TOPIC].stream
        self._seen: tuple[float, float] | None = None
        """The broker's time, and the monotonic one at that moment."""
        self._stopping = asyncio.Event()

    def __call__(self) -> datetime:
        """The present instant by the broker's clock. `look` comes first."""
        assert self._seen is not None, "look() comes first"  # noqa: S101 - a programming error
        at, measured = self._seen
        return datetime.fromtimestamp(at + self._monotonic() - measured, UTC)

    async def look(self) -> None:
        """Ask the broker. Raises `BusUnavailable`."""
        before = self._monotonic()
        told = await self._bus.ask(f"STREAM.INFO.{self._stream}", _Told)
        after = self._monotonic()
        if self._seen is None or after - before <= SHARP_S:
            self._seen = (told.ts.timestamp(), (before + after) / 2)

    async def run(self) -> None:
        """Ask now and then until stopped; while the broker is away, time goes on."""
        while not self._stopping.is_set():
            with suppress(BusUnavailable):
                await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()
