"""What stopped coming: trajectories, or the opinions on them; and whether what comes can be stored.

A team's agents may rest over a weekend, and an installation that never had feedback lacks none: so silence is noted
from a day, or three, until it is no news any more.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from ratchet.core.rules.recent_share import RecentShare
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.nats_streams import Streams

TRAJECTORIES = ("RL_TRAJECTORIES", "RL_TURNS")
FEEDBACK = "RL_FEEDBACK"
QUIET, FORGOTTEN = timedelta(days=1), timedelta(days=7)
"""How old the newest trajectory is when its silence is noted, and until when."""
DRY, DRIED = timedelta(days=3), timedelta(days=14)
"""The same of feedback, while trajectories go on."""


class Silence:
    """Looks at the newest message of each stream, and at what becomes of all."""

    def __init__(self, streams: Streams, now: Callable[[], datetime], share: RecentShare | None = None) -> None:
        self._streams = streams
        self._now = now
        self._share = share or RecentShare()
        self._trajectories: str | None = None
        self._feedback: str | None = None

    async def tick(self) -> None:
        """Look once. Raises `BusUnavailable`."""
        self._share.observe(*metrics.outcomes())
        newest = [at for at in [await self._streams.newest_at(stream) for stream in TRAJECTORIES] if at is not None]
        opinion, now = await self._streams.newest_at(FEEDBACK), self._now()
        last = max(newest, default=None)
        quiet = last is not None and QUIET < now - last < FORGOTTEN
        self._trajectories = f"none since {last:%Y-%m-%d %H:%M} UTC" if quiet else None
        goes_on = last is not None and now - last <= QUIET
        dry = goes_on and opinion is not None and DRY < now - opinion < DRIED
        self._feedback = f"none since {opinion:%Y-%m-%d %H:%M} UTC, while trajectories go on" if dry else None

    async def check_trajectories(self) -> str | None:
        """A note: since when no trajectory has come."""
        return self._trajectories

    async def check_feedback(self) -> str | None:
        """A note: since when no feedback has come."""
        return self._feedback

    async def check_collection(self) -> str | None:
        """A note: which share of the last ten minutes' messages cannot be stored, where it is more than a tenth."""
        dead = self._share.too_large
        return f"{dead:.0%} of the last ten minutes' messages cannot be stored" if dead is not None else None
