"""Whether the broker stores what is published: a small write, again and again, that counts once it is on the disk."""

from __future__ import annotations

from datetime import datetime

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import PROBES
from ratchet.core.errors import BusUnavailable

PROBE_S = 5.0
"""Pause between two writes."""
UNANSWERED = 6
"""Writes in a row; each is waited for for 5 s. One may meet a disk that others keep busy."""


class DurableWrites:
    """What nats-server says of itself at /healthz knows the writes that failed; this knows those that hang."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = Bucket(bus, PROBES, datetime)
        self._unanswered = 0

    async def check(self) -> str | None:
        """Write once. Why the broker is not to be relied on, None while it is or is away anyway."""
        if not self._bus.is_connected:
            self._unanswered = 0
            return None
        try:
            await self._bucket.put("supervisor", self._bus.now())
        except BusUnavailable as error:
            self._unanswered += 1
            return f"takes no writes: {error}" if self._unanswered >= UNANSWERED else None
        self._unanswered = 0
        return None
