"""Sends one receiver what it is to get: a component for each, so that one that hangs keeps no other waiting."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import structlog
from msgspec.structs import replace
from prometheus_client import Counter

from ratchet.bus.tasks import Lasting
from ratchet.core.contract.notifications import Receiver
from ratchet.core.errors import Conflict, RatchetError, Unavailable
from ratchet.core.rules.alert_book import AlertBook
from ratchet.core.service.alerts import Alerts
from ratchet.notifier.domain.deliveries import (
    RECEIVER_KEY,
    Rules,
    attempted,
    composed,
    delivered,
    due,
    failed,
    is_due,
    with_report,
)
from ratchet.notifier.domain.schedule import with_beginnings
from ratchet.notifier.kv_receivers import ReceiverStore
from ratchet.notifier.reports import Reports
from ratchet.notifier.transports import Transport

log = structlog.get_logger()
NOTIFICATIONS = Counter("ratchet_notifications_total", "Attempts to notify a receiver.", ["receiver", "outcome"])

POLL_S = 1.0
"""Longest pause between two looks: retries, quiet hours and cool-downs end by time alone."""
GATHER_S = 1.0
"""What comes in the moments after an alert goes with it."""
MAKE_S, REMAKE_S = 25.0, 60.0
"""How long a report may take to be made, alerts wait for it; and the pause before it is tried again."""
FAILING = 3
"""Attempts in a row that fail until that is an alert itself."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What all receivers hear of."""

    book: Callable[[], AlertBook | None]
    """The alerts, None while it is not known which hold."""
    alerts: Alerts
    """Those of this service."""
    reports: Reports
    now: Callable[[], datetime]


class Delivery(Lasting):
    """Notifications of one receiver, one after the other."""

    def __init__(self, rules: Rules, store: ReceiverStore, transport: Transport, sources: Sources) -> None:
        super().__init__()
        self._rules = rules
        self._store = store
        self._transport = transport
        self._alerts = sources.alerts
        self._book = sources.book
        self._reports = sources.reports
        self._now = sources.now
        self._waits_until_s = 0.0
        """By the monotonic clock: a report that could not be made is not tried before."""
        self._woken = asyncio.Event()
        self._dropped = 0
        """Alerts that were too many to keep, as of the last notification."""

    def wake(self) -> None:
        """There is an alert more."""
        self._woken.set()

    async def _work(self) -> None:
        while True:
            try:
                await self.step()
            except (Unavailable, Conflict, OSError) as error:
                log.warning("delivery waits", receiver=self._rules.name, reason=str(error))
                await asyncio.sleep(POLL_S)
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
                await asyncio.sleep(GATHER_S)

    async def step(self) -> None:
        """One look: send what is due, if anything is. Raises `Unavailable`, or `Conflict` with another notifier."""
        receiver, now = await self._store.load(), self._now()
        if receiver is None:
            return
        receiver = await self._with_due_report(self._with_news(receiver, now), now)
        outgoing = receiver.outgoing
        if outgoing is None or not is_due(outgoing, now):
            if self._store.is_beat_due:
                await self._store.save(receiver, now)
            return
        receiver = await self._store.save(attempted(receiver, outgoing, now), now)
        assert receiver.outgoing is not None  # noqa: S101 - it was attempted
        reason = await self._transport.send(outgoing.message_id, outgoing.notification)
        await self._settle(receiver, reason)

    def _with_news(self, receiver: Receiver, now: datetime) -> Receiver:
        book, quiet = self._book(), self._rules.quiet
        receiver = replace(receiver, quiet=quiet is not None and quiet.cover(now))
        changes = due(receiver, book, self._rules, now) if book is not None else []
        if book is None or not changes:
            return receiver
        dropped, self._dropped = book.dropped - self._dropped, book.dropped
        return composed(receiver, changes, max(dropped, 0), str(uuid.uuid4()), now)

    async def _with_due_report(self, receiver: Receiver, now: datetime) -> Receiver:
        """With the report that is due, unless something else is under way. One that cannot be made now comes late."""
        rules = self._rules
        receiver = replace(receiver, reported=with_beginnings(receiver.reported, rules.reports, now))
        waits = receiver.outgoing is not None or self._book() is None or rules.hold_back("info", now)
        if waits or not rules.reports or time.monotonic() < self._waits_until_s:
            return receiver
        try:
            async with asyncio.timeout(MAKE_S):
                report = await self._reports.due(receiver.reported, rules, now)
        except Exception as error:  # the boundary: whatever is wrong with a report, alerts go on
            reason, known = str(error) or f"longer than {MAKE_S:g} s", isinstance(error, RatchetError | TimeoutError)
            log.warning("a report waits", receiver=rules.name, reason=reason, exc_info=not known)
            self._waits_until_s = time.monotonic() + REMAKE_S
            return receiver
        return receiver if report is None else with_report(receiver, report, now)

    async def _settle(self, receiver: Receiver, reason: str | None) -> None:
        now, outgoing, name = self._now(), receiver.outgoing, self._rules.name
        assert outgoing is not None  # noqa: S101 - it was sent
        if reason is None:
            after = delivered(receiver, outgoing, now)
            log.info("notified", receiver=name, alerts=len(outgoing.notification.alerts), attempts=outgoing.attempts)
        else:
            after = failed(receiver, outgoing, reason, self._rules, now)
            log.warning("not notified", receiver=name, attempts=outgoing.attempts, reason=reason)
        NOTIFICATIONS.labels(name, "taken" if reason is None else "failed").inc()
        await self._store.save(after, now)
        key = f"{RECEIVER_KEY}{name}"
        if reason is None:
            await self._alerts.clear_alert(key)
        elif after.failures >= FAILING:
            await self._alerts.raise_alert(key, f"receiver {name} does not take notifications: {reason}")
