"""Tells operators, by alert events, what the collector's audit found."""

from __future__ import annotations

import structlog

from ratchet.bus.connection import Bus
from ratchet.contract import Alert, JsonObject, named_id
from ratchet.errors import RatchetError

log = structlog.get_logger()

SOURCE = "trajectory_collector"


class Alerts:
    """Publishes an alert when it begins and when it ends; in between it says nothing again.

    What the broker does not take now is told later: `retry`.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[str, str] = {}
        self._waiting: dict[str, Alert] = {}

    async def tell(self, key: str, summary: str, labels: JsonObject | None = None, severity: str = "critical") -> None:
        """Tell of something that happened or holds. The same key is told once until it is cleared."""
        if key in self._open or key in self._waiting:
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
        await self._publish(alert)

    async def clear(self, key: str) -> None:
        """Tell that what was told holds no longer."""
        self._waiting.pop(key, None)
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

    async def retry(self) -> None:
        """Tell what could not be told yet. A broker that was replaced is itself what there is to tell of."""
        waiting, self._waiting = self._waiting, {}
        for alert in waiting.values():
            await self._publish(alert)

    async def _publish(self, alert: Alert) -> None:
        if await self._published(alert):
            self._open[alert.key] = alert.summary
        else:
            self._waiting[alert.key] = alert

    async def _published(self, alert: Alert) -> bool:
        """Metrics and readiness say meanwhile what cannot be published."""
        try:
            await self._bus.publish(alert)
        except RatchetError as error:
            log.warning("alert not published yet", key=alert.key, reason=str(error))
            return False
        log.warning("alert cleared" if alert.cleared else "alert", key=alert.key, summary=alert.summary)
        return True
