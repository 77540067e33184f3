"""The gateway serves a canary only while the broker stores its events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ratchet.gateway.publishing import Publishing


class Seen:
    """What a gateway with a patience of 20 s makes of counts of (when, published, pending, lost)."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.outbox: Any = SimpleNamespace()
        self.publishing = Publishing(
            self.outbox, self.outbox, close_s=0.0, patience_s=20.0, monotonic=lambda: self.now_s
        )

    async def observe(self, *counts: tuple[float, int, int, int]) -> None:
        for now_s, published, pending, lost in counts:
            self.now_s, self.outbox.pending = now_s, pending
            self.outbox.stats = SimpleNamespace(published=published, overflowed=lost, refused=0)
            await self.publishing.observe()

    def is_blind(self, now_s: float) -> bool:
        self.now_s = now_s
        return self.publishing.is_blind()


async def observed(*counts: tuple[float, int, int, int]) -> Seen:
    seen = Seen()
    await seen.observe(*counts)
    return seen


async def test_gateway_with_nothing_to_publish_is_never_blind() -> None:
    seen = await observed((1.0, 0, 0, 0), (1000.0, 0, 0, 0))
    assert not seen.is_blind(1015.0)


async def test_gateway_is_blind_once_nothing_got_through_beyond_its_patience() -> None:
    seen = await observed((10.0, 5, 0, 0), (11.0, 5, 3, 0), (30.0, 5, 9, 0))
    assert not seen.is_blind(30.0)
    assert seen.is_blind(30.1)


async def test_a_gateway_is_not_blind_while_part_of_its_backlog_gets_through() -> None:
    seen = await observed((10.0, 5, 100, 0), (29.0, 6, 200, 0))
    assert not seen.is_blind(45.0)


async def test_an_event_that_gets_through_ends_the_blindness() -> None:
    seen = await observed((0.0, 0, 1, 0), (30.0, 0, 1, 0))
    assert seen.is_blind(30.0)
    await seen.observe((31.0, 1, 0, 0))
    assert not seen.is_blind(31.0)


async def test_a_loss_blinds_for_as_long_as_the_patience() -> None:
    seen = await observed((10.0, 5, 0, 1), (15.0, 6, 0, 1))
    assert seen.is_blind(30.0)
    assert not seen.is_blind(30.1)
    await seen.observe((40.0, 7, 0, 2))
    assert seen.is_blind(41.0)


async def test_a_late_count_shows_a_backlog_from_before_it() -> None:
    """The event loop was busy: a count that was not taken does not prove that events got through."""
    seen = await observed((0.0, 5, 3, 0))
    assert seen.is_blind(60.0)
