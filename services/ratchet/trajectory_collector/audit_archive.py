"""Copies the audit log to the object store, a file for each program and day, before the stream forgets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, date, datetime, time, timedelta

import structlog

from ratchet.bus.connection import Bus
from ratchet.core.stores.audit_store import AuditStore, audit_entries

log = structlog.get_logger()

ARCHIVE_S = 3600.0
"""Time between looks whether a day is over."""
OVER = timedelta(hours=1)
"""A day is over so long after its end: clocks differ."""


class AuditArchive:
    """Copies every day that is over. Copying one again changes nothing."""

    def __init__(self, bus: Bus, store: AuditStore, now: Callable[[], datetime]) -> None:
        self._bus = bus
        self._store = store
        self._now = now
        self._through: date | None = None
        """The newest day that is copied."""

    async def tick(self) -> None:
        """Copy what is due. Raises `Unavailable`."""
        today = (self._now() - OVER).date()
        if self._through == today - timedelta(days=1):
            return
        stored = await asyncio.to_thread(self._store.days)
        start = datetime.combine(stored[-1][0], time(), UTC) if stored else 1  # that day may not be whole
        days, hashes = dict[tuple[date, str], list[bytes]](), set[str | None]()
        async with aclosing(audit_entries(self._bus, start)) as entries:
            async for entry, day, body in entries:
                if day >= today:
                    break
                days.setdefault((day, entry.service), []).append(body)
                hashes.add(entry.hash)
        for (day, program), bodies in sorted(days.items()):
            await asyncio.to_thread(self._store.keep_day, day, program, bodies)
        await asyncio.to_thread(self._remove_heads, hashes)
        self._through = today - timedelta(days=1)
        log.info("audit log archived", files=len(days), entries=len(hashes))

    def _remove_heads(self, copied: set[str | None]) -> None:
        """Of the heads of what was copied, the newest of each program stands for all. The others say too much to be
        removed: that their entries are missing."""
        heads = [(head, uri) for uri, head in self._store.heads() if head is not None and head.hash in copied]
        newest = {head.service: head.number for head, _ in sorted(heads, key=lambda pair: pair[0].number)}
        for head, uri in heads:
            if head.number < newest[head.service]:
                self._store.remove_head(uri)
