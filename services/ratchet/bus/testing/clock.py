"""A clock that moves when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class FakeClock:
    """Call it for the time: it fits everything that takes `now: Callable[[], datetime]`."""

    def __init__(self, at: datetime = START) -> None:
        self._at = at
        self._passed_s = 0.0

    def __call__(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> datetime:
        """Let time pass."""
        self._passed_s += seconds
        return self.set_by(seconds)

    def set_by(self, seconds: float) -> datetime:
        """The wall clock is set forward, or back; no time passes."""
        self._at += timedelta(seconds=seconds)
        return self._at

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._passed_s
