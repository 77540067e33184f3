"""Trims streams that refuse messages when they are full, down to a mark, of the messages that every reader has read.

A message stays for as long as one of these needs it:

- the audit: the message is not accounted for yet, or its row is gone;
- a durable consumer, also one of a service that `topics.json` names and that was never started, but none that it calls
  optional;
- a projection, by the cursor in its bucket;
- a rollout that is under way, by the sequences in its record;
- the setting `trim_keep_s`: after a restore of ClickHouse from last hour's backup, the stream supplies the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from ratchet.core.errors import RatchetError
from ratchet.core.service.alerts import Alerts
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.nats_readers import NatsReaders
from ratchet.trajectory_collector.nats_streams import Progress, Streams

log = structlog.get_logger()


def target(progress: Progress, down_to: float) -> int:
    """The sequence up to which messages of even size would have to go so that the stream is only `down_to` full."""
    surplus = max(0.0, 1.0 - down_to / progress.fill) if progress.fill > 0 else 0.0
    held = progress.last - progress.first + 1
    return progress.first - 1 + int(held * surplus)


@dataclass(frozen=True)
class Trimmer:
    """Trims the streams that refuse new messages when they are full."""

    streams: Streams
    readers: NatsReaders
    balanced_up_to: Callable[[str], int]
    """`Auditor.balanced_up_to`."""
    alerts: Alerts
    consumers: Mapping[str, str]
    """The collector's own durable by stream."""
    above: float
    """A stream that is fuller is trimmed."""
    down_to: float
    """How full it should be then."""
    alarm_above: float
    """A stream that stays fuller raises an alert."""
    keep: timedelta
    """Younger messages stay."""
    now: Callable[[], datetime]

    async def tick(self) -> None:
        """Trim every stream once; a stream that cannot be trimmed now does not hide the others."""
        for stream, consumer in self.consumers.items():
            try:
                await self._trim(stream, consumer)
            except RatchetError as error:
                log.warning("stream not trimmed", stream=stream, reason=str(error))

    async def _trim(self, stream: str, consumer: str) -> None:
        progress = await self.streams.progress(stream, consumer)
        blocked = None
        if progress.refuses and progress.fill > self.above:
            readers = dict(await self.readers.read_up_to(stream))
            readers["the audit"] = self.balanced_up_to(stream)
            readers["trim_keep_s"] = await self.streams.last_before(stream, self.now() - self.keep)
            slowest = min(readers, key=lambda name: readers[name])
            up_to = min(readers[slowest], target(progress, self.down_to))
            if up_to >= progress.first:
                await self.streams.drop_before(stream, up_to + 1)
                metrics.TRIMMED.labels(stream).inc(up_to - progress.first + 1)
                log.warning("stream trimmed", stream=stream, up_to=up_to, fill=round(progress.fill, 3))
            blocked = f"{slowest} needs the messages after {readers[slowest]}"
            progress = await self.streams.progress(stream, consumer)
        metrics.FILL.labels(stream).set(progress.fill)
        if blocked is not None and progress.fill > self.alarm_above:
            await self.alerts.raise_alert(
                f"full:{stream}",
                f"{stream} is {progress.fill:.0%} full and cannot be trimmed: {blocked} of {progress.last}. When it is"
                " full it refuses messages, and producers spool.",
                {"stream": stream, "fill": progress.fill},
            )
        else:
            await self.alerts.clear_alert(f"full:{stream}")
