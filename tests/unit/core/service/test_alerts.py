"""An alert is raised once and cleared once, whatever runs beside it."""

from __future__ import annotations

import asyncio

from ratchet.bus.testing import FakeClock
from ratchet.core.contract import Alert
from tests.support.fake_bus import alerts_on, fake_bus


async def test_an_alert_that_is_cleared_while_it_is_published_does_not_stay_open() -> None:
    clock = FakeClock()
    bus = fake_bus(clock)
    alerts = alerts_on(bus)
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
    alerts = alerts_on(bus)
    bus.broker.answering.clear()
    raising = asyncio.create_task(alerts.raise_alert("disk", "the disk is full"))
    await asyncio.sleep(0)
    again = asyncio.create_task(alerts.publish_pending())
    await asyncio.sleep(0)
    bus.broker.answering.set()
    await asyncio.gather(raising, again)
    await alerts.raise_alert("disk", "the disk is full")
    assert [alert.summary for alert in bus.published(Alert)] == ["the disk is full"]


async def test_an_alert_of_a_process_that_was_killed_is_cleared_by_the_next_one() -> None:
    bus = fake_bus()
    await alerts_on(bus).raise_alert("disk", "the disk is full", role="support")
    await alerts_on(bus, "another").raise_alert("engine", "the engine is away")
    later = alerts_on(bus)
    await later.publish_pending()
    await later.raise_alert("disk", "the disk is still full")
    for key in later.keys:
        await later.clear_alert(key)
    cleared = [(alert.key, alert.role, alert.summary) for alert in bus.published(Alert) if alert.cleared]
    assert cleared == [("disk", "support", "the disk is full")]


async def test_what_still_holds_after_half_a_day_or_is_worse_is_raised_again() -> None:
    clock = FakeClock()
    bus = fake_bus(clock)
    alerts = alerts_on(bus)
    for severity in ("warning", "warning", "critical", "critical", "critical"):
        await alerts.raise_alert("disk", f"full at {bus.now():%H} h", severity=severity)
        clock.advance(6 * 3600)
    assert [alert.severity for alert in bus.published(Alert)] == ["warning", "critical", "critical"]
