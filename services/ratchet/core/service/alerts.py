"""Alerts of a service, raised once and cleared once, and a view of those of all services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.tasks import Lasting
from ratchet.core.contract import Alert, JsonObject, named_id
from ratchet.core.errors import BusUnavailable, ContractError, RatchetError
from ratchet.core.rules.alert_book import AlertBook

log = structlog.get_logger()

STREAM = "RL_ALERTS"
WAIT_S, AGAIN_S = 5.0, 1.0
"""Longest wait for a message, and the pause before a stream is read again that could not be read."""
AGAIN = timedelta(hours=12)
"""What still holds after so long is raised again: a reminder, and for those who look at the last day."""


@dataclass(slots=True)
class Alerts:
    """Publishes an alert once when it begins and once when it ends, also if the process was killed in between.

    An alert that the broker does not take now is pending: `publish_pending` tries again.
    """

    source: str
    publish: Callable[[Alert], Awaitable[object]]
    now: Callable[[], datetime]
    held: Callable[[], Awaitable[Iterable[Alert]]]
    """The alerts that hold, of all services; those of this `source` were raised by a process before."""
    unpublished: Callable[[Alert], object] = lambda _: None
    """Gets the end of an alert whose beginning the broker never took."""
    _resumed: bool = field(default=False, init=False)
    _open: dict[str, Alert] = field(default_factory=dict[str, Alert], init=False)
    _pending: dict[str, Alert] = field(default_factory=dict[str, Alert], init=False)

    @property
    def resumed(self) -> bool:
        """Whether it is known which alerts the process before this one raised and did not clear."""
        return self._resumed

    @property
    def pending(self) -> list[Alert]:
        """Those that the broker has not taken yet."""
        return [*self._pending.values()]

    @property
    def keys(self) -> list[str]:
        """Of the alerts that were reported and not cleared."""
        return [*(self._open.keys() | self._pending.keys())]

    async def raise_alert(
        self,
        key: str,
        summary: str,
        labels: JsonObject | None = None,
        severity: str = "critical",
        role: str | None = None,
    ) -> None:
        """Report something that happened or holds.

        A key that is reported already is reported again only after it was cleared, with another severity, or after
        `AGAIN`.
        """
        known, at = self._pending.get(key) or self._open.get(key), self.now()
        if known is not None and known.severity == severity and timedelta() <= at - known.at < AGAIN:
            return
        alert = self._pending[key] = Alert(
            alert_id=named_id("alert", self.source, key, at.isoformat()),
            key=key,
            severity=severity,
            summary=summary,
            source=self.source,
            at=at,
            role=role,
            labels=labels,
        )
        await self._publish_pending(alert)

    async def clear_alert(self, key: str) -> None:
        """Report that the alert of this key holds no longer."""
        pending, known = self._pending.pop(key, None), self._open.get(key)
        alert = known or pending
        if alert is None:
            return
        over = Alert(
            alert_id=named_id("alert", self.source, key, "cleared", self.now().isoformat()),
            key=key,
            severity="info",
            summary=alert.summary,
            source=self.source,
            at=self.now(),
            cleared=True,
            role=alert.role,
        )
        if known is None:
            self.unpublished(over)
        elif await self._published(over):
            self._open.pop(key, None)

    async def publish_pending(self) -> None:
        """Publish the alerts that the broker did not take. One of them may be that the broker was replaced."""
        if not self._resumed:
            try:
                held = await self.held()
            except RatchetError as error:
                log.warning("it is not known yet which alerts hold", reason=str(error))
                return
            self._open = {alert.key: alert for alert in held if alert.source == self.source} | self._open
            self._resumed = True
        for alert in self.pending:
            await self._publish_pending(alert)

    async def reread(self, beginning: str) -> None:
        """Know what other processes of this source raised and cleared, of the keys that begin so.

        Raises `BusUnavailable`.
        """
        held = await self.held()
        own = {alert.key: alert for alert in held if alert.source == self.source and alert.key.startswith(beginning)}
        self._open = {key: alert for key, alert in self._open.items() if not key.startswith(beginning)} | own

    async def _publish_pending(self, alert: Alert) -> None:
        """While it is published, others may publish it too, and clear it: then its end is published as well."""
        if not await self._published(alert):
            return
        if self._pending.get(alert.key) is alert:
            del self._pending[alert.key]
            self._open[alert.key] = alert
        elif alert.key not in self._pending and alert.key not in self._open:
            self._open[alert.key] = alert
            await self.clear_alert(alert.key)

    async def _published(self, alert: Alert) -> bool:
        """Whether the broker took the alert; as long as it does not, metrics and readiness show what is wrong."""
        try:
            await self.publish(alert)
        except RatchetError as error:
            log.warning("alert not published yet", key=alert.key, reason=str(error))
            return False
        log.warning("alert cleared" if alert.cleared else "alert", key=alert.key, summary=alert.summary)
        return True


async def read_alerts(bus: Bus, since: datetime | int = 1) -> AlertBook:
    """The alerts of all services. Raises `BusUnavailable`."""
    book = AlertBook()
    async with aclosing(OrderedReader(bus, STREAM, start=since).to_end()) as batches:
        async for batch in batches:
            _add(bus, book, batch)
    return book


async def held_alerts(bus: Bus, since: datetime | int = 1) -> list[Alert]:
    """The alerts that hold now, of all services. Raises `BusUnavailable`."""
    return [noticed.alert for noticed in await read_alerts(bus, since) if not noticed.alert.cleared]


class AlertsFollower(Lasting):
    """Alerts of all services, followed in their stream: a component, and the book of what it has read."""

    def __init__(
        self, connect: Callable[[], Awaitable[Bus]], since: timedelta | None, changed: Callable[[], None] | None = None
    ) -> None:
        """`since`: how far back it begins, None for all that the stream holds. `changed`: is called after each one."""
        super().__init__()
        self._connect = connect
        self._since = since
        self._changed = changed or (lambda: None)
        self.book = AlertBook()
        self.unread: str | None = f"{STREAM} is not read to its end yet"
        """Why it is not known which alerts hold."""

    async def _work(self) -> None:
        bus = await self._connect()
        while True:
            try:
                await self._read(bus)
            except BusUnavailable as error:
                self.unread = str(error)
                log.debug("alerts wait for the broker", reason=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _read(self, bus: Bus) -> None:
        """Read until the broker is away: then all of it again, and what held before is not known to hold."""
        start = 1 if self._since is None else bus.now() - self._since
        reader, book = OrderedReader(bus, STREAM, start=start), AlertBook()
        try:
            await reader.open()
            there = (await reader.state()).total
            while True:
                if reader.count >= there and self.book is not book:
                    self.book, self.unread = book, None
                    self._changed()
                batch = await reader.next(WAIT_S)
                _add(bus, book, batch)
                if batch:
                    self._changed()
        finally:
            await reader.close()


def _add(bus: Bus, book: AlertBook, batch: Iterable[Msg]) -> None:
    for message in batch:
        try:
            alert = bus.read(message)[0].message
        except ContractError:  # its consumers make it a dead letter
            continue
        if isinstance(alert, Alert):
            book.add(alert)
