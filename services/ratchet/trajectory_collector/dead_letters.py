"""Watches the stream of dead letters: when it is full it drops its oldest, which must not happen in silence."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.core.service.alerts import Alerts
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.nats_streams import Progress, Streams

STREAM = "RL_DEADLETTERS"
ALARM_ABOVE = 0.5
"""The share of the stream's bound from which people are asked to make room; what fills it may be fast."""
LARGEST = 256 * 1024
"""Bytes that no dead letter has: a stream with less room drops one for each that comes."""


@dataclass
class DeadLetterWatch:
    """Alerts before the stream is full, and counts what it drops then."""

    streams: Streams
    alerts: Alerts
    _first: int | None = None
    """The oldest dead letter at the last look."""

    async def tick(self) -> None:
        """Look at the stream once. Raises `BusUnavailable`."""
        held = await self.streams.progress(STREAM)
        metrics.FILL.labels(STREAM).set(held.fill)
        dropped = held.first - self._first if self._first is not None and _is_full(held) else 0
        self._first = held.first
        if dropped > 0:
            metrics.DROPPED.inc(dropped)
            await self.alerts.raise_alert(
                "dead letters dropped",
                f"{STREAM} is full and has dropped its {dropped} oldest dead letters; more will follow. `ratchet"
                " deadletters list` shows what fills it, `ratchet deadletters drop` makes room.",
            )
        if held.fill > ALARM_ABOVE:
            await self.alerts.raise_alert(
                f"full:{STREAM}",
                f"{STREAM} is {held.fill:.0%} full, and drops its oldest dead letters when it is full. `ratchet"
                " deadletters list` shows what fills it, `ratchet deadletters drop` makes room.",
                {"stream": STREAM, "fill": held.fill},
                severity="warning",
            )
        else:
            await self.alerts.clear_alert(f"full:{STREAM}")
            await self.alerts.clear_alert("dead letters dropped")


def _is_full(held: Progress) -> bool:
    return held.max_bytes is not None and held.max_bytes - held.bytes < LARGEST
