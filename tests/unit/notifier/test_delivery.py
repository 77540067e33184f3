"""What a receiver is sent while something else fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import START
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.notifications import NOTIFICATIONS, Notification, Receiver, SentReport
from ratchet.core.errors import BusUnavailable, Conflict, Rejected
from ratchet.core.rules.alert_book import AlertBook
from ratchet.notifier.delivery import Delivery, Sources
from ratchet.notifier.domain.deliveries import CLAIM, Rules
from ratchet.notifier.kv_receivers import ReceiverStore
from ratchet.notifier.reports import Reports
from tests.support.fake_bus import alerts_on, fake_bus


@dataclass
class Inbox:
    """A receiver that takes what comes."""

    keys: list[str] = field(default_factory=list[str])
    """Of the alerts, as they came."""
    meanwhile: Callable[[], Awaitable[object]] | None = None
    """What happens while it takes a notification."""

    async def send(self, message_id: str, notification: Notification) -> str | None:
        self.keys += [alert.key for alert in notification.alerts]
        if self.meanwhile is not None:
            await self.meanwhile()
        return None


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
        self.reports = FailingReports(error or Rejected("no reports"))
        self.rules = Rules(name="team", spacing=timedelta(), reports=frozenset({"daily"} if error else ()))
        self.states = Bucket(self.bus, NOTIFICATIONS, Receiver)
        blank = Receiver(name="team", kind="webhook", severity="warning", at=self.now)
        store = ReceiverStore(blank, folder, "one", lambda: self.bus if self.bus.is_connected else None)
        reports = cast("Reports", self.reports)
        sources = Sources(lambda: self.book, alerts_on(self.bus, "notifier"), reports, lambda: self.now)
        self.delivery = Delivery(self.rules, store, self.inbox, sources)

    async def looks(self) -> None:
        """Some looks of the notifier, also after what was under way has lapsed."""
        for _ in range(3):
            with suppress(Conflict):
                await self.delivery.step()
            self.now += CLAIM

    async def replace_holder(self) -> None:
        """Another notifier writes the state."""
        entry = await self.states.get("team")
        assert entry is not None
        await self.states.put("team", msgspec.structs.replace(entry.value, holder="two"))

    def alert(self, key: str) -> None:
        """One more holds."""
        at = self.now
        self.book.add(Alert(alert_id=named_id(key), key=key, severity="critical", summary=key, source="gateway", at=at))


@pytest.mark.parametrize("error", [Rejected("Code: 62"), BusUnavailable("away"), KeyError("a fault of ours")])
async def test_alerts_go_on_where_a_report_cannot_be_made(error: Exception, tmp_path: Path) -> None:
    world = World(tmp_path, error)
    await world.delivery.step()
    world.alert("disk")
    await world.delivery.step()
    assert (world.inbox.keys, world.reports.asked) == (["disk"], 1)


@pytest.mark.parametrize("write", [1, 2], ids=["of the attempt", "of its end"])
async def test_broker_whose_answer_to_a_write_is_lost_has_nothing_sent_twice(write: int, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.bus.faults.at, world.bus.faults.after_effect, world.bus.faults.error = write, True, BusUnavailable
    world.alert("disk")
    await world.looks()
    entry = await world.states.get("team")
    assert entry is not None
    assert (world.inbox.keys, [*entry.value.known], entry.value.outgoing) == (["disk"], ["disk"], None)


async def test_broker_that_loses_the_state_meanwhile_has_nothing_sent_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.inbox.meanwhile = lambda: world.states.delete("team")
    world.alert("disk")
    await world.looks()
    assert world.inbox.keys == ["disk"]


async def test_notifier_that_was_replaced_while_it_sent_leaves_the_state_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.inbox.meanwhile = world.replace_holder
    world.alert("disk")
    with pytest.raises(Conflict):
        await world.delivery.step()
    await world.looks()
    entry = await world.states.get("team")
    assert entry is not None
    assert (world.inbox.keys, entry.value.holder) == (["disk"], "two")


@pytest.mark.parametrize("away", [False, True], ids=["the broker is there", "and the broker is away"])
async def test_alert_is_sent_once_where_the_disk_takes_no_state(away: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.looks()
    (tmp_path / "team.json").unlink()
    (tmp_path / "team.json").mkdir()
    if away:
        world.bus.broker.go_away()
    world.alert("disk")
    await world.looks()
    assert world.inbox.keys == ["disk"]
