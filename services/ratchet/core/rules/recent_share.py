"""The share of what went wrong lately, of two counts that only grow: what is lost, or fails, of all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

COLLECTION = "collection"
"""The check at /readyz of what producers and the collector lose."""
TOO_MUCH = 0.1
"""More than this share is an alert."""
LEAST = 20
"""Fewer events say nothing about a share."""
SAMPLES = 60
"""Counts that are kept of the window."""


class RecentShare:
    """Give it the counts as often as you like: it keeps one of each sixtieth of the window."""

    def __init__(self, window_s: float = 600.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._monotonic = monotonic
        self._samples: deque[tuple[float, float, float]] = deque()
        """When, how many went well and how many did not, oldest first; the oldest is the window's beginning."""
        self._now = (0.0, 0.0)

    def observe(self, well: float, badly: float) -> None:
        """Both counts as they are now, since they began."""
        now_s, self._now = self._monotonic(), (well, badly)
        while len(self._samples) > 1 and now_s - self._samples[1][0] >= self._window_s:
            self._samples.popleft()
        if not self._samples or now_s - self._samples[-1][0] >= self._window_s / SAMPLES:
            self._samples.append((now_s, well, badly))

    @property
    def too_large(self) -> float | None:
        """The share of the window that went badly where it is more than `TOO_MUCH` of at least `LEAST` events."""
        if not self._samples:
            return None
        _, well_before, badly_before = self._samples[0]
        well, badly = self._now[0] - well_before, self._now[1] - badly_before
        total = well + badly
        return badly / total if total >= LEAST and badly / total > TOO_MUCH else None
