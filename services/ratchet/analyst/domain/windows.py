"""Windows: two of one length, one before the other, that a run looks at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ratchet.bus.message import Value

LENGTHS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=28))
MANY, FEW = 2_000, 200
"""Trajectories of either window from which a length is the right one, and without which nothing is looked at."""
SETTLED = timedelta(minutes=10)
"""After the end of a window it is looked at."""
PROMPT = timedelta(minutes=8)
"""After the end of a trajectory: rewards and feedback that came by then count, in either window, so that the earlier
one has not had longer for them. Until a window is looked at they have two minutes to be stored."""
ASKED = timedelta(minutes=1)
"""A run that is asked for looks at windows that end with a minute."""


class Windows(Value, frozen=True, kw_only=True):
    """The earlier window is `since` to `middle`, the later one `middle` to `until`; ends do not belong to them."""

    since: datetime
    middle: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.middle


def windows(length: timedelta, now: datetime, *, asked: bool = False) -> Windows:
    """The newest windows of a length. By the clock they end with multiples of it, so that each follows the last."""
    grid = ASKED if asked else length
    epoch = datetime.fromtimestamp(0, UTC)
    until = epoch + (now - SETTLED - epoch) // grid * grid
    return Windows(since=until - 2 * length, middle=until - length, until=until)


def fitting(counts: dict[timedelta, tuple[int, int]]) -> timedelta | None:
    """The shortest length of which both windows hold many trajectories, else enough; None where none does."""
    for least in (MANY, FEW):
        for length in LENGTHS:
            if length in counts and min(counts[length]) >= least:
                return length
    return None
