"""Whether calls fail: a note of the gateway's, by what it has counted lately."""

from __future__ import annotations

import time
from collections.abc import Callable

from ratchet.core.rules.recent_share import RecentShare
from ratchet.gateway import metrics

LOOK_S = 5.0
"""How often it looks at the counts."""


class FailingCalls:
    """The share of the calls of the last five minutes that got an answer of 500 or above."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._share = RecentShare(300.0, monotonic)

    async def observe(self) -> None:
        """Take note of the counts; to be called every `LOOK_S`."""
        self._share.observe(*metrics.answered())

    async def check(self) -> str | None:
        """A note: the share, where it is more than a tenth."""
        failed = self._share.too_large
        return f"{failed:.0%} of the calls of the last five minutes failed" if failed is not None else None
