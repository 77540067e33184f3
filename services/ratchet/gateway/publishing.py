"""The way of events to the broker as a component, and whether they arrive."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ratchet.bus.connection import Bus
from ratchet.bus.outbox import Outbox

OBSERVE_S = 1.0
"""How often the gateway looks whether the broker stores its events."""


@dataclass(slots=True)
class Observation:
    """Whether events get through to the broker, by our own clock (monotonic seconds).

    While they do not, nothing could observe a canary, and the gateway must not serve one.
    """

    patience_s: float
    """How long nothing may get through, and how long a loss counts."""
    well_at: float
    """When the broker last stored something, or nothing waited."""
    lost_at: float | None = None
    published: int = 0
    lost: int = 0

    def observe(self, *, published: int, pending: int, lost: int, now_s: float) -> None:
        """Take note of the counts since the start: stored, still waiting, and dropped for want of room."""
        if not pending or published > self.published:
            self.well_at = now_s
        if lost > self.lost:
            self.lost_at = now_s
        self.published, self.lost = published, lost

    def is_blind(self, now_s: float) -> bool:
        """Whether nothing got through for longer than the patience, or an event was dropped within it."""
        if now_s - self.well_at > self.patience_s:
            return True
        return self.lost_at is not None and now_s - self.lost_at <= self.patience_s


class Publishing:
    """Runs the outbox, and observes whether its events arrive."""

    def __init__(
        self, outbox: Outbox, connect: Callable[[], Awaitable[Bus]], *, close_s: float, patience_s: float
    ) -> None:
        self._outbox = outbox
        self._connect = connect
        self._close_s = close_s
        self._observation = Observation(patience_s, time.monotonic())

    async def run(self) -> None:
        """Publish until stopped."""
        await self._outbox.run(self._connect)

    async def stop(self) -> None:
        """Publish what is queued, within the deadline; the rest stays in the spool."""
        await self._outbox.flush(self._close_s)
        await self._outbox.stop()

    async def observe(self) -> None:
        """Take note of the outbox's counts; to be called every `OBSERVE_S`."""
        stats, pending = self._outbox.stats, self._outbox.pending
        now_s = time.monotonic()
        self._observation.observe(published=stats.published, pending=pending, lost=stats.overflowed, now_s=now_s)

    def is_blind(self) -> bool:
        """Whether the broker no longer stores what the gateway publishes: the gateway then serves no canary."""
        return self._observation.is_blind(time.monotonic())

    async def check(self) -> str | None:
        """Readiness: how many events were lost because neither memory nor disk had room."""
        lost = self._outbox.stats.overflowed
        return f"{lost} events lost: the queue or the spool on disk was full" if lost else None
