"""What streams have acknowledged lately, held in case that the broker loses it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ratchet.bus.envelope import Record

KEPT_S = 300.0
KEPT_BYTES = 16 * 1024 * 1024
"""What a program holds of what was acknowledged: as long as a restart of the broker takes, in bounded memory."""
RECORD_BYTES = 2048
"""What a record takes in memory beside its body, its headers above all."""


class _Kept(NamedTuple):
    at: float
    stream: str
    sequence: int
    record: Record


class Acknowledged:
    """What the streams of a bus have acknowledged lately: no longer than `KEPT_S`, no more than `KEPT_BYTES`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._counts = Counter[str]()
        self._gone: dict[str, int] = {}

    def add(self, stream: str, sequences: Sequence[int], records: Sequence[Record]) -> None:
        """Hold these; the oldest give way."""
        now = self._monotonic()
        self._kept.extend(map(_Kept, [now] * len(records), [stream] * len(records), sequences, records))
        self._counts[stream] += len(records)
        self._bytes += sum(len(record.body) for record in records) + RECORD_BYTES * len(records)
        self.forget_old(now)

    def forget_old(self, now: float | None = None) -> None:
        """Let go of what is too old, or too much."""
        before = (self._monotonic() if now is None else now) - KEPT_S
        while self._kept and (self._kept[0].at < before or self._bytes > KEPT_BYTES):
            kept = self._kept.popleft()
            self._let_go(kept)
            self._gone[kept.stream] = max(kept.sequence, self._gone.get(kept.stream, 0))

    def streams(self) -> list[str]:
        """Those of which something is held."""
        return [stream for stream, count in self._counts.items() if count]

    def gone(self, stream: str) -> int:
        """The highest sequence of what is not held any more; 0 for none."""
        return self._gone.get(stream, 0)

    def take(self, stream: str) -> list[Record]:
        """What is held of a stream, oldest first; it is not held any longer."""
        taken = [kept for kept in self._kept if kept.stream == stream]
        self._kept = deque(kept for kept in self._kept if kept.stream != stream)
        for kept in taken:
            self._let_go(kept)
        self._gone.pop(stream, None)
        return [kept.record for kept in taken]

    def _let_go(self, kept: _Kept) -> None:
        self._counts[kept.stream] -= 1
        self._bytes -= len(kept.record.body) + RECORD_BYTES
