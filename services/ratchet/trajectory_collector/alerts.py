"""Tells operators, by alert events, what the collector's audit found."""

from __future__ import annotations

import structlog

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import RatchetError
from ratchet.messages import Alert, JsonObject, named_id

log = structlog.get_logger()

SOURCE = "trajectory_collector"


class Alerts:
    """Publishes an alert when it begins and when it ends; in between it says nothing again."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[str, str] = {}

    async def tell(self, key: str, summary: str, labels: JsonObject | None = None, severity: str = "critical") -> None:
        """Tell of something that happened or holds. The same key is told once until it is cleared."""
        if key in self._open:
            return
        alert = Alert(
            alert_id=named_id("alert", key, self._bus.now().isoformat()),
            key=key,
            severity=severity,
            summary=summary,
            source=SOURCE,
            at=self._bus.now(),
            labels=labels,
        )
        if await self._published(alert):
            self._open[key] = alert.summary

    async def clear(self, key: str) -> None:
        """Tell that what was told holds no longer."""
        summary = self._open.get(key)
        if summary is None:
            return
        alert = Alert(
            alert_id=named_id("alert", key, "cleared", self._bus.now().isoformat()),
            key=key,
            severity="info",
            summary=summary,
            source=SOURCE,
            at=self._bus.now(),
            cleared=True,
        )
        if await self._published(alert):
            del self._open[key]

    async def _published(self, alert: Alert) -> bool:
        """An alert that cannot be published now is told at the next look: metrics and readiness say it meanwhile."""
        try:
            await self._bus.publish(alert)
        except RatchetError as error:
            log.warning("alert not published", key=alert.key, reason=str(error))
            return False
        log.warning("alert cleared" if alert.cleared else "alert", key=alert.key, summary=alert.summary)
        return True
