"""Keeps streams that refuse when they are full from becoming full: what every reader has is removed, down to a mark.

A message stays for as long as any of these needs it:

- the audit: it is not accounted for yet, or its row is gone;
- a durable consumer, also one of a service that `topics.json` names and that was never started;
- a projection, by the cursor in its bucket;
- a rollout that is under way, by the sequences in its record;
- the setting `trim_keep_s`: whoever restores ClickHouse from a backup of last hour reads the rest from the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from ratchet.errors import RatchetError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.alerts import Alerts
from ratchet.trajectory_collector.nats_streams import Progress, Streams

log = structlog.get_logger()


class Readers(Protocol):
    """Who reads streams."""

    async def applied(self, stream: str) -> Mapping[str, int]:
        """By name, up to where each has read the stream; 0 for one that never did. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class TrimRules:
    """When to trim, and how much."""

    above: float
    """A stream that is fuller is trimmed."""
    down_to: float
    """How full it should be then."""
    alarm_above: float
    """A stream that stays fuller is told to operators."""
    keep: timedelta
    """What is younger stays."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Up to where a stream may be trimmed, and who needs what comes after."""

    up_to: int
    by: str


def target(progress: Progress, down_to: float) -> int:
    """The sequence up to which messages of even size would have to go so that the stream is only `down_to` full."""
    surplus = max(0.0, 1.0 - down_to / progress.fill) if progress.fill > 0 else 0.0
    held = progress.last - progress.first + 1
    return progress.first - 1 + int(held * surplus)


class Trimmer:
    """Trims the streams that refuse new messages when they are full."""

    def __init__(  # noqa: PLR0913 - its collaborators, by name
        self,
        streams: Streams,
        readers: Readers,
        balanced_up_to: Callable[[str], int],
        alerts: Alerts,
        *,
        consumers: Mapping[str, str],
        rules: TrimRules,
        now: Callable[[], datetime],
    ) -> None:
        """`consumers`: the collector's own durable by stream; `balanced_up_to`: what the audit has found in order."""
        self._streams = streams
        self._readers = readers
        self._balanced_up_to = balanced_up_to
        self._alerts = alerts
        self._consumers = consumers
        self._rules = rules
        self._now = now

    async def tick(self) -> None:
        """Look at every stream once; one that cannot be looked at now does not hide the others."""
        for stream, consumer in self._consumers.items():
            try:
                await self._look(stream, consumer)
            except RatchetError as error:
                log.warning("stream not trimmed", stream=stream, reason=str(error))

    async def _look(self, stream: str, consumer: str) -> None:
        progress = await self._streams.progress(stream, consumer)
        needed = None
        if progress.refuses and progress.fill > self._rules.above:
            needed = await self._needed(stream)
            await self._trim(stream, progress, needed)
            progress = await self._streams.progress(stream, consumer)
        metrics.FILL.labels(stream).set(progress.fill)
        if needed is not None and progress.fill > self._rules.alarm_above:
            await self._alerts.tell(
                f"full:{stream}",
                f"{stream} is {progress.fill:.0%} full and cannot be trimmed: {needed.by} needs what comes after"
                f" {needed.up_to} of {progress.last}. When it is full it refuses; producers spool.",
                {"stream": stream, "fill": progress.fill},
            )
        else:
            await self._alerts.clear(f"full:{stream}")

    async def _trim(self, stream: str, progress: Progress, needed: Needed) -> None:
        up_to = min(needed.up_to, target(progress, self._rules.down_to))
        if up_to >= progress.first:
            await self._streams.drop_before(stream, up_to + 1)
            metrics.TRIMMED.labels(stream).inc(up_to - progress.first + 1)
            log.warning("stream trimmed", stream=stream, up_to=up_to, fill=round(progress.fill, 3))

    async def _needed(self, stream: str) -> Needed:
        """The reader that is furthest behind."""
        readers = dict(await self._readers.applied(stream))
        readers["the audit"] = self._balanced_up_to(stream)
        readers["trim_keep_s"] = await self._streams.last_before(stream, self._now() - self._rules.keep)
        by = min(readers, key=lambda name: readers[name])
        return Needed(readers[by], by)
