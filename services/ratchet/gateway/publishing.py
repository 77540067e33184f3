"""The way of events to the broker as a component, and whether they arrive."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from ratchet.bus.connection import Bus
from ratchet.bus.outbox import Outbox
from ratchet.core.rules.recent_share import RecentShare
from ratchet.gateway import metrics

OBSERVE_S = 1.0
"""How often the gateway looks whether the broker stores its events."""


class Publishing:
    """Runs the outbox, and observes whether its events arrive.

    While they do not, nothing could observe a canary, and the gateway must not serve one.
    """

    def __init__(
        self,
        outbox: Outbox,
        connect: Callable[[], Awaitable[Bus]],
        *,
        close_s: float,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience_s`: how long nothing may get through, and how long a loss counts."""
        self._outbox = outbox
        self._connect = connect
        self._close_s = close_s
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._well_at = monotonic()
        """When the broker last stored something, or nothing waited."""
        self._lost_at: float | None = None
        self._published = self._lost = 0
        self._share = RecentShare(monotonic=monotonic)

    async def run(self) -> None:
        """Publish until stopped."""
        await self._outbox.run(self._connect)

    async def stop(self) -> None:
        """Publish what is queued, within the deadline; the rest stays in the spool."""
        await self._outbox.flush(self._close_s)
        await self._outbox.stop()

    async def observe(self) -> None:
        """Take note of the outbox's counts; to be called every `OBSERVE_S`."""
        stats, now_s = self._outbox.stats, self._monotonic()
        if not self._outbox.pending or stats.published > self._published:
            self._well_at = now_s
        if stats.overflowed > self._lost:
            self._lost_at = now_s
        self._published, self._lost = stats.published, stats.overflowed
        self._share.observe(stats.published, stats.overflowed + stats.refused + metrics.unpublished())

    def is_blind(self) -> bool:
        """Whether nothing got through for longer than the patience, or an event was dropped within it: the gateway then
        serves no canary."""
        now_s = self._monotonic()
        if now_s - self._well_at > self._patience_s:
            return True
        return self._lost_at is not None and now_s - self._lost_at <= self._patience_s

    async def check_collection(self) -> str | None:
        """A note: which share of the events of the last ten minutes is lost, where it is more than a tenth."""
        lost = self._share.too_large
        return f"{lost:.0%} of the last ten minutes' events are lost" if lost is not None else None

    async def check(self) -> str | None:
        """Readiness: how many events were lost because neither memory nor disk had room."""
        lost = self._outbox.stats.overflowed
        return f"{lost} events lost: the queue or the spool on disk was full" if lost else None
