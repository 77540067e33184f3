"""A clock that moves when a test says so, and waiting for conditions instead of for time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class FakeClock:
    """Call it for the time: it fits everything that takes `now: Callable[[], datetime]`."""

    def __init__(self, at: datetime = START) -> None:
        self._at = at
        self._passed_s = 0.0

    def __call__(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> datetime:
        """Let time pass."""
        self._passed_s += seconds
        return self.set_by(seconds)

    def set_by(self, seconds: float) -> datetime:
        """The wall clock is set forward, or back; no time passes."""
        self._at += timedelta(seconds=seconds)
        return self._at

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._passed_s


T = TypeVar("T")


SOONEST_S, LATEST_S = 0.02, 0.2
"""How long `eventually` pauses: a tenth of what it has waited, within these bounds. A probe may ask a server, and what
asks fifty times a second takes the processor from what it waits for."""


async def eventually(probe: Callable[[], Awaitable[T | None]], deadline_s: float = 120.0) -> T:
    """Call `probe` until it returns something true; fails with its last answer after the deadline."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        answer = await probe()
        if answer:
            return answer
        waited = loop.time() - began
        if waited > deadline_s:
            raise AssertionError(f"did not become true within {deadline_s:g} s: last answer {answer!r}")
        await asyncio.sleep(min(LATEST_S, max(SOONEST_S, waited / 10)))
