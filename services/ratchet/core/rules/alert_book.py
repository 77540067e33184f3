"""Which alerts hold: a fold over the alerts of all services, in the order of their stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from ratchet.core.contract import Alert

RECENTLY = timedelta(days=1)
"""An alert that no service cleared is news for so long; what still holds then is raised again."""
MOST = 500
"""Most alerts that hold, and most that are over, of which a book knows: a service that raises a new key each second is
one fault, not a thousand."""
LONGEST_KEY, LONGEST_SUMMARY = 200, 1000
"""Characters of a key and of a summary that are kept: nothing bounds them in the stream."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """An alert as it was noticed last."""

    alert: Alert
    times: int
    """How often it was raised since it was over."""


class AlertBook:
    """Each key's newest alert, of those that hold and of those that are over."""

    def __init__(self) -> None:
        self._holding: dict[str, Noticed] = {}
        self._over: dict[str, Noticed] = {}
        self.dropped = 0
        """Alerts that held and of which it knows no more: there were too many."""

    def add(self, alert: Alert) -> None:
        """One more event; one that comes twice is one."""
        alert = _bounded(alert)
        before = self._holding.get(alert.key)
        if before is not None and before.alert.alert_id == alert.alert_id:
            return
        self._holding.pop(alert.key, None)
        self._over.pop(alert.key, None)
        if alert.cleared:
            self._over[alert.key] = Noticed(alert, 0)
        else:
            self._holding[alert.key] = Noticed(alert, 1 + (before.times if before is not None else 0))
        for noticed in (self._holding, self._over):
            if len(noticed) > MOST:
                del noticed[next(iter(noticed))]
                self.dropped += noticed is self._holding

    def holding(self, now: datetime) -> list[Alert]:
        """Those that hold and were raised within the last day, in the order in which they were."""
        return [noticed.alert for noticed in self._holding.values() if now - noticed.alert.at <= RECENTLY]

    def __iter__(self) -> Iterator[Noticed]:
        """Those that are over, then those that hold."""
        yield from self._over.values()
        yield from self._holding.values()


def _bounded(alert: Alert) -> Alert:
    """The alert without labels, a long key shortened to one that no other key becomes."""
    key = alert.key
    if len(key) > LONGEST_KEY:
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        key = f"{key[: LONGEST_KEY - len(digest) - 1]}~{digest}"
    return replace(alert, key=key, summary=alert.summary[:LONGEST_SUMMARY], labels=None)
