"""How many requests a caller may make: a token bucket for each, for a bounded number of callers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

REMEMBERED_CALLERS = 10_000
"""Beyond them the one that has been quiet the longest is forgotten, and would begin with a full bucket."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Lets a caller make so many requests in a minute, at once or spread; a quiet minute fills the bucket again."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float], *, callers: int = REMEMBERED_CALLERS) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._callers = callers
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """0 for a request that may be made, and it is counted; else the seconds until one may."""
        now = self._monotonic()
        bucket = self._buckets.setdefault(caller, _Bucket(self._per_minute, now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._per_minute, bucket.tokens + (now - bucket.at) * self._per_minute / 60)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * 60 / self._per_minute
        bucket.tokens -= 1
        return 0.0

    def __len__(self) -> int:
        return len(self._buckets)
