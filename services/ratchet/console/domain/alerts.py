"""Which alerts hold: each key's newest one, until it is cleared or a day has passed."""

from __future__ import annotations

from datetime import datetime

from ratchet.console.domain.attention import RECENTLY
from ratchet.core.contract import Alert

MOST = 500
"""Most alerts that are kept: a service that raises a new key each second is one fault, not a thousand."""


class Firing:
    """Alerts by key, as they come."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}

    def add(self, alert: Alert) -> None:
        """One more; one that ends an alert takes it away."""
        self._alerts.pop(alert.key, None)
        if alert.cleared:
            return
        self._alerts[alert.key] = alert
        if len(self._alerts) > MOST:
            del self._alerts[next(iter(self._alerts))]

    def at(self, now: datetime) -> list[Alert]:
        """Those that hold, in the order in which they were raised."""
        return [alert for alert in self._alerts.values() if now - alert.at <= RECENTLY]
