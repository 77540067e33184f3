"""Sends one receiver what it is to get: a component for each, so that one that hangs keeps no other waiting."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

import structlog
from msgspec.structs import replace
from prometheus_client import Counter

from ratchet.bus.tasks import Lasting
from ratchet.core.contract.notifications import Receiver
from ratchet.core.errors import Conflict, Unavailable
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
)
from ratchet.notifier.kv_receivers import ReceiverStore
from ratchet.notifier.transports import Transport

log = structlog.get_logger()
NOTIFICATIONS = Counter("ratchet_notifications_total", "Attempts to notify a receiver.", ["receiver", "outcome"])

POLL_S = 1.0
"""Longest pause between two looks: retries, quiet hours and cool-downs end by time alone."""
GATHER_S = 1.0
"""What comes in the moments after an alert goes with it."""
FAILING = 3
"""Attempts in a row that fail until that is an alert itself."""


class Delivery(Lasting):
    """Notifications of one receiver, one after the other."""

    def __init__(
        self,
        rules: Rules,
        store: ReceiverStore,
        transport: Transport,
        book: Callable[[], AlertBook | None],
        alerts: Alerts,
        now: Callable[[], datetime],
    ) -> None:
        """`book`: the alerts, None while it is not known which hold."""
        super().__init__()
        self._rules = rules
        self._store = store
        self._transport = transport
        self._book = book
        self._alerts = alerts
        self._now = now
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
        receiver = self._with_news(receiver, now)
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
