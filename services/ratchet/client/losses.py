"""Tells operators of a client that loses much of what its agent does: an alert, by the client's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from ratchet.bus.connection import Bus
from ratchet.client.recording import Stats
from ratchet.core.contract import Alert
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.recent_share import RecentShare
from ratchet.core.service.alerts import Alerts

LOOK_S = 10.0
"""How often it looks at the client's counts."""


class Losses:
    """Whether more than a tenth of the last ten minutes' messages were lost."""

    def __init__(
        self,
        name: str,
        stats: Callable[[], Stats],
        bus: Callable[[], Bus | None],
        now: Callable[[], datetime],
        share: RecentShare | None = None,
    ) -> None:
        """`name`: the client's; `bus`: its connection, None while it has none."""
        self._key = f"collection-errors:{name}"
        self._name = name
        self._stats = stats
        self._bus = bus
        self._share = share or RecentShare()
        self._alerts = Alerts(name, self._publish, now, _none_held)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Raise the alert, or clear it. While the broker is away it is pending."""
        stats = self._stats()
        self._share.observe(stats.published, stats.overflowed + stats.damaged + stats.invalid)
        await self._alerts.publish_pending()
        lost = self._share.too_large
        if lost is None:
            await self._alerts.clear_alert(self._key)
        else:
            summary = f"{self._name} loses {lost:.0%} of what its agent does"
            await self._alerts.raise_alert(self._key, summary)

    async def _publish(self, alert: Alert) -> None:
        bus = self._bus()
        if bus is None or not bus.is_connected:
            raise BusUnavailable("the broker is not connected")
        await bus.publish(alert)


async def _none_held() -> list[Alert]:
    """A client reads no stream: what a process before it raised is news for a day."""
    return []
