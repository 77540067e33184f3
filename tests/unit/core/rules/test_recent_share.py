"""The share of what went wrong lately: of a window, and of enough events."""

from __future__ import annotations

import pytest

from ratchet.bus.testing import FakeClock
from ratchet.core.rules.recent_share import LEAST, RecentShare


def test_more_than_a_tenth_of_the_window_is_too_large_until_it_has_passed() -> None:
    clock = FakeClock()
    share = RecentShare(600, clock.monotonic)
    share.observe(1000, 900)  # before it began to look
    assert share.too_large is None
    clock.advance(60)
    share.observe(1089, 910)
    assert share.too_large == pytest.approx(10 / 99)
    clock.advance(300)
    share.observe(1200, 910)
    assert share.too_large is None


def test_what_goes_on_stays_and_what_is_over_passes_with_the_window() -> None:
    clock = FakeClock()
    share = RecentShare(600, clock.monotonic)
    share.observe(0, 0)
    for _ in range(200):
        clock.advance(5)
        share.observe(0, 1000)
    assert share.too_large is None  # nothing new within the window
    clock.advance(5)
    share.observe(0, 1000 + LEAST)
    assert share.too_large == 1.0


def test_few_events_say_nothing() -> None:
    clock = FakeClock()
    share = RecentShare(600, clock.monotonic)
    share.observe(0, 0)
    clock.advance(1)
    share.observe(0, LEAST - 1)
    assert share.too_large is None
