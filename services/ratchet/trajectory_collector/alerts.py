"""Alert events, by which the collector reports to operators."""

from __future__ import annotations

import structlog

from ratchet.bus.connection import Bus
from ratchet.core.contract import Alert, JsonObject, named_id
from ratchet.core.errors import RatchetError

log = structlog.get_logger()

SOURCE = "trajectory_collector"


class Alerts:
    """Publishes an alert once when it begins and once when it ends.

    An alert that the broker does not take now is pending: `publish_pending` tries again.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[str, str] = {}
        self._pending: dict[str, Alert] = {}

    async def raise_alert(
        self, key: str, summary: str, labels: JsonObject | None = None, severity: str = "critical"
    ) -> None:
        """Report something that happened or holds; a key that is reported already only after it was cleared."""
        if key in self._open or key in self._pending:
            return
        at = self._bus.now()
        alert = self._pending[key] = Alert(
            alert_id=named_id("alert", key, at.isoformat()),
            key=key,
            severity=severity,
            summary=summary,
            source=SOURCE,
            at=at,
            labels=labels,
        )
        await self._publish_pending(alert)

    async def clear_alert(self, key: str) -> None:
        """Report that the alert of this key holds no longer."""
        self._pending.pop(key, None)
        if key not in self._open:
            return
        at = self._bus.now()
        alert = Alert(
            alert_id=named_id("alert", key, "cleared", at.isoformat()),
            key=key,
            severity="info",
            summary=self._open[key],
            source=SOURCE,
            at=at,
            cleared=True,
        )
        if await self._published(alert):
            self._open.pop(key, None)

    async def publish_pending(self) -> None:
        """Publish the alerts that the broker did not take. One of them may be that the broker was replaced."""
        for alert in list(self._pending.values()):
            await self._publish_pending(alert)

    async def _publish_pending(self, alert: Alert) -> None:
        """While it is published, others may publish it too, and clear it: then its end is published as well."""
        if not await self._published(alert):
            return
        if self._pending.get(alert.key) is alert:
            del self._pending[alert.key]
            self._open[alert.key] = alert.summary
        elif alert.key not in self._pending and alert.key not in self._open:
            self._open[alert.key] = alert.summary
            await self.clear_alert(alert.key)

    async def _published(self, alert: Alert) -> bool:
        """Whether the broker took the alert; as long as it does not, metrics and readiness show what is wrong."""
        try:
            await self._bus.publish(alert)
        except RatchetError as error:
            log.warning("alert not published yet", key=alert.key, reason=str(error))
            return False
        log.warning("alert cleared" if alert.cleared else "alert", key=alert.key, summary=alert.summary)
        return True
