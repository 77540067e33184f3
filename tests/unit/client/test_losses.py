"""A client that loses much of what its agent does tells operators, once it can, and that it is over."""

from __future__ import annotations

from ratchet.bus.testing import FakeClock
from ratchet.client.losses import Losses
from ratchet.client.recording import Stats
from ratchet.core.contract import Alert
from ratchet.core.rules.recent_share import RecentShare
from tests.support.fake_bus import fake_bus


def stats(published: int, overflowed: int = 0, invalid: int = 0) -> Stats:
    return Stats(
        published=published, pending=0, overflowed=overflowed, damaged=0, invalid=invalid, redacted=0, redactions={}
    )


async def test_losses_are_an_alert_once_the_broker_is_there_and_then_over() -> None:
    clock = FakeClock()
    bus, connected, counts = fake_bus(clock), False, stats(0)
    losses = Losses(
        "client:support",
        lambda: counts,
        lambda: bus if connected else None,
        clock,
        RecentShare(600, clock.monotonic),
    )
    await losses.look()
    clock.advance(10)
    counts = stats(60, overflowed=30, invalid=10)
    await losses.look()
    assert bus.published(Alert) == []
    connected = True
    await losses.look()
    (raised,) = bus.published(Alert)
    assert (raised.key, raised.severity) == ("collection-errors:client:support", "critical")
    assert raised.summary == "client:support loses 40% of what its agent does"
    clock.advance(700)
    counts = stats(1000, overflowed=30, invalid=10)
    await losses.look()
    assert [alert.cleared for alert in bus.published(Alert)] == [False, True]
