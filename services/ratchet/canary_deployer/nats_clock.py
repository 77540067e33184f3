"""The broker's clock, by which deployers agree whose own clocks do not.

The route holds the instant from which a weight counts, and gateways compare it with the instants in trajectories' ids.
By a clock that runs two days ahead a canary would get its traffic in two days.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.pull_consumer import ask
from ratchet.core.contract import Start

SYNCHRONIZE_S = 10.0
"""How often to ask the broker; in between the monotonic clock goes on."""
SHARP_S = 1.0
"""An answer that took longer says too little, once another is known."""


class _StreamInfo(msgspec.Struct):
    ts: datetime


class BrokerClock:
    """A function without arguments: the present instant. `synchronize` comes first, and then now and then."""

    def __init__(self, bus: Bus, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._monotonic = monotonic
        self._stream = bus.contracts.topics[Start.TOPIC].stream
        self._seen: tuple[float, float] | None = None
        """The broker's time, and the monotonic one at that moment."""

    def __call__(self) -> datetime:
        """The present instant by the broker's clock."""
        assert self._seen is not None, "synchronize() comes first"  # noqa: S101 - a programming error
        at, measured = self._seen
        return datetime.fromtimestamp(at + self._monotonic() - measured, UTC)

    async def synchronize(self) -> None:
        """Ask the broker. Raises `BusUnavailable`; time goes on from the last answer then."""
        before = self._monotonic()
        info = await ask(self._bus.nc, f"STREAM.INFO.{self._stream}", _StreamInfo)
        after = self._monotonic()
        if self._seen is None or after - before <= SHARP_S:
            self._seen = (info.ts.timestamp(), (before + after) / 2)
