"""What a receiver is sent while something else fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ratchet.bus.testing import START
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.notifications import Notification, Receiver, SentReport
from ratchet.core.errors import BusUnavailable, Rejected
from ratchet.core.rules.alert_book import AlertBook
from ratchet.notifier.delivery import Delivery, Sources
from ratchet.notifier.domain.deliveries import Rules
from ratchet.notifier.kv_receivers import ReceiverStore
from ratchet.notifier.reports import Reports
from tests.support.fake_bus import alerts_on, fake_bus


@dataclass
class Inbox:
    """A receiver that takes what comes."""

    sent: list[tuple[str, Notification]] = field(default_factory=list[tuple[str, Notification]])

    async def send(self, message_id: str, notification: Notification) -> str | None:
        self.sent.append((message_id, notification))
        return None

    @property
    def keys(self) -> list[str]:
        return [alert.key for _, notification in self.sent for alert in notification.alerts]


@dataclass
class FailingReports:
    """Cannot be made."""

    error: Exception
    asked: int = 0

    async def due(self, reported: Mapping[str, datetime], rules: Rules, now: datetime) -> SentReport | None:
        self.asked += 1
        raise self.error


class World:
    """One notifier, its receiver, and a broker in memory."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.bus = fake_bus()
        self.now = START
        self.book = AlertBook()
        self.inbox = Inbox()
        self.folder = folder
        self.reports = FailingReports(error or Rejected("no reports"))
        self.rules = Rules(name="team", spacing=timedelta(), reports=frozenset({"daily"} if error else ()))
        self.delivery = self.started()

    def started(self, holder: str = "one") -> Delivery:
        """A notifier that has just been started."""
        blank = Receiver(name="team", kind="webhook", severity="warning", at=self.now)
        store = ReceiverStore(blank, self.folder, holder, lambda: self.bus if self.bus.is_connected else None)
        reports = cast("Reports", self.reports)
        sources = Sources(lambda: self.book, alerts_on(self.bus, "notifier"), reports, lambda: self.now)
        return Delivery(self.rules, store, self.inbox, sources)

    def alert(self, key: str) -> None:
        """One more holds."""
        at = self.now
        self.book.add(Alert(alert_id=named_id(key), key=key, severity="critical", summary=key, source="gateway", at=at))


@pytest.mark.parametrize("error", [Rejected("Code: 62"), BusUnavailable("away")])
async def test_alerts_go_on_where_a_report_cannot_be_made(error: Exception, tmp_path: Path) -> None:
    world = World(tmp_path, error)
    await world.delivery.step()
    world.alert("disk")
    await world.delivery.step()
    assert (world.inbox.keys, world.reports.asked) == (["disk"], 1)
