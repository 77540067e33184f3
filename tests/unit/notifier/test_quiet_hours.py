"""Quiet hours: over midnight, and where clocks are set forward or back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ratchet.notifier.domain.quiet_hours import quiet_hours


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "instant", "quiet"),
    [
        ("22:00-07:00", "2026-03-02T21:59:59", False),
        ("22:00-07:00", "2026-03-02T22:00:00", True),
        ("22:00-07:00", "2026-03-03T00:00:00", True),
        ("22:00-07:00", "2026-03-03T07:00:00", False),
        ("12:00-13:30 UTC", "2026-03-02T13:29:00", True),
        ("12:00-13:30 UTC", "2026-03-02T13:30:00", False),
        # Berlin is an hour before UTC in winter and two in summer.
        ("22:00-07:00 Europe/Berlin", "2026-01-10T21:30:00", True),
        ("22:00-07:00 Europe/Berlin", "2026-01-10T06:30:00", False),
        ("22:00-07:00 Europe/Berlin", "2026-07-10T20:30:00", True),
        ("22:00-07:00 Europe/Berlin", "2026-07-10T05:30:00", False),
        # 2026-03-29: 02:00 becomes 03:00, at 01:00 UTC.
        ("02:00-03:00 Europe/Berlin", "2026-03-29T00:59:59", False),
        ("02:00-03:00 Europe/Berlin", "2026-03-29T01:00:00", False),
        # 2026-10-25: 03:00 becomes 02:00, at 01:00 UTC: that hour comes twice.
        ("02:00-03:00 Europe/Berlin", "2026-10-25T00:30:00", True),
        ("02:00-03:00 Europe/Berlin", "2026-10-25T01:30:00", True),
        ("02:00-03:00 Europe/Berlin", "2026-10-25T02:00:00", False),
    ],
)
def test_quiet_hours_follow_the_clock_on_the_wall(hours: str, instant: str, quiet: bool) -> None:
    assert quiet_hours(hours).cover(at(instant)) is quiet


@pytest.mark.parametrize(
    "text", ["", "22-7", "22:00", "24:30-07:00", "22:00-22:00", "22:00-07:00 Mars/Base", "1:00-2:00 ../x"]
)
def test_hours_that_no_clock_has_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|zone|hour must be|begins when"):
        quiet_hours(text)
