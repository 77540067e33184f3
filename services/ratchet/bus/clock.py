"""The wall clock, as everything that needs one takes it: `now: Callable[[], datetime]`."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The instant, in UTC."""
    return datetime.now(UTC)
