"""The routes of all roles, followed in the bucket `policies`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode
from ratchet.bus.tasks import UntilStopped
from ratchet.core.contract.state import POLICIES, Route

log = structlog.get_logger()


class Routes:
    """Each role's route, as this process last read it; an entry that cannot be read is left out."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._routes: dict[str, Route] = {}
        self._working = UntilStopped()

    def current(self) -> Mapping[str, Route]:
        """By role."""
        return self._routes

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        await self._working.run(self._follow())

    async def stop(self) -> None:
        """Return from `run`."""
        self._working.stop()

    async def _follow(self) -> None:
        bucket = Bucket(self._bus, POLICIES, msgspec.Raw)
        async for changes in bucket.watch(lambda key: "." not in key):
            for role, entry in changes:
                self._take_over(role, entry)

    def _take_over(self, role: str, entry: Entry[msgspec.Raw] | None) -> None:
        self._routes.pop(role, None)
        if entry is None:
            return
        try:
            self._routes[role] = decode(entry.value, Route)
        except msgspec.DecodeError as error:
            log.warning("route unreadable", role=role, reason=str(error))
