"""An alert is raised once and cleared once, whatever runs beside it."""

from __future__ import annotations

import asyncio

from ratchet.bus.testing import FakeClock
from ratchet.core.contract import Alert
from ratchet.trajectory_collector.alerts import Alerts
from tests.support.fake_bus import fake_bus


async def test_an_alert_that_is_cleared_while_it_is_published_does_not_stay_open() -> None:
    clock = FakeClock()
    bus = fake_bus(clock)
    alerts = Alerts(bus)
    bus.broker.answering.clear()
    raising = asyncio.create_task(alerts.raise_alert("disk", "the disk is full"))
    again = asyncio.create_task(alerts.publish_pending())
    await asyncio.sleep(0)
    await alerts.clear_alert("disk")
    bus.broker.answering.set()
    await asyncio.gather(raising, again)
    assert [alert.cleared for alert in bus.published(Alert)][-1] is True
    clock.advance(1)
    await alerts.raise_alert("disk", "the disk is full again")
    assert bus.published(Alert)[-1].summary == "the disk is full again"


async def test_an_alert_that_two_publish_at_once_is_one_alert() -> None:
    bus = fake_bus()
    alerts = Alerts(bus)
    bus.broker.answering.clear()
    raising = asyncio.create_task(alerts.raise_alert("disk", "the disk is full"))
    await asyncio.sleep(0)
    again = asyncio.create_task(alerts.publish_pending())
    await asyncio.sleep(0)
    bus.broker.answering.set()
    await asyncio.gather(raising, again)
    await alerts.raise_alert("disk", "the disk is full")
    assert [alert.summary for alert in bus.published(Alert)] == ["the disk is full"]
