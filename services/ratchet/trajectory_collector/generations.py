"""Which generation of a stream a sequence belongs to.

A stream that was made anew, or restored from an older copy, gives its sequences out again. Rows and ledger entries
carry the generation's name, so that one generation never stands for another. A generation ends when

- the stream was created at another time than the generation's, or
- the stream ends before the newest message that the ledger knows, or holds another message in that one's place.

The collector verifies the generation when it starts, after a lost connection, when a sequence comes for the first time
that is not above all earlier ones, and at every audit. A broker cannot be replaced without one of these.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from ratchet.bus.received import Received
from ratchet.core.service.alerts import Alerts
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_ledger import Generation, Ledger
from ratchet.trajectory_collector.ledger import Account, Entry
from ratchet.trajectory_collector.nats_streams import Progress, Streams

log = structlog.get_logger()

LOST_WITH_IT = (
    "Messages that the broker had acknowledged and the collector had not stored are lost with the old stream."
)
SAME = timedelta(milliseconds=2)
"""Two instants this close belong to the same message: the ledger keeps milliseconds."""


@dataclass(slots=True)
class _Known:
    """The verified generation of a stream, and what it was verified by."""

    generation: Generation | None = None
    connections: int = -1
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """By topic, the highest sequence that came for the first time."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Generations:
    """Names the generations of streams, the same in every collector."""

    def __init__(self, streams: Streams, ledger: Ledger, alerts: Alerts, now: Callable[[], datetime]) -> None:
        self._streams = streams
        self._ledger = ledger
        self._alerts = alerts
        self._now = now
        self._known: defaultdict[str, _Known] = defaultdict(_Known)

    async def of(self, consumer: str, batch: Sequence[Received[Any]]) -> str:
        """The generation that a batch of messages of one topic belongs to. Raises `Unavailable`."""
        stream, topic = batch[0].stream, batch[0].message.TOPIC
        known = self._known[stream]
        new = [received.sequence for received in batch if received.delivered == 1]
        highest = known.highest.get(topic, 0)
        generation = known.generation
        if generation is None or known.connections != self._streams.connections:
            generation = await self.verified(stream, consumer, await self._streams.progress(stream, consumer))
            highest = 0
        elif min(new, default=highest + 1) <= highest:
            progress = await self._streams.progress(stream, consumer)
            if (
                progress.created != generation.created
            ):  # removed and made again; an older copy would need a new connection
                generation = await self.verified(stream, consumer, progress)
                highest = 0
        known.highest[topic] = max([highest, *new])
        return generation.name

    async def current(self, stream: str, consumer: str) -> str:
        """The generation that the stream is in; verifies it only after a lost connection. Raises `Unavailable`."""
        known = self._known[stream]
        if known.generation is None or known.connections != self._streams.connections:
            return (await self.verified(stream, consumer, await self._streams.progress(stream, consumer))).name
        return known.generation.name

    async def verified(self, stream: str, consumer: str, progress: Progress) -> Generation:
        """The generation that the stream is in, compared with the messages that it holds now. Raises `Unavailable`."""
        known = self._known[stream]
        async with known.lock:
            connections = self._streams.connections
            generation = await self._ledger.generation(stream, progress.created)
            if generation is None:
                if await self._ledger.has_generation(stream):
                    metrics.REWOUND.labels(stream).inc()
                    log.error("the stream was made anew", stream=stream, made=progress.created)
                    await self._alerts.raise_alert(
                        f"remade:{stream}:{progress.created}",
                        f"{stream} was made anew at {progress.created}. {LOST_WITH_IT}",
                    )
                generation = await self._begin(stream, Generation(progress.created, 0, 1))
            newest = await self._ledger.newest(Account(stream, consumer, generation.name))
            if newest is not None and await self._is_rewound(stream, consumer, newest):
                progress = await self._streams.progress(stream, consumer)
                metrics.REWOUND.labels(stream).inc()
                log.error("the broker holds an older copy", stream=stream, ends=progress.last, ledger=newest.sequence)
                await self._alerts.raise_alert(
                    f"rewound:{stream}:{progress.created}:{newest.sequence}",
                    f"{stream} was restored from an older copy: it ends at {progress.last} and its consumer at"
                    f" {progress.floor}, while messages up to {newest.sequence} are stored. {LOST_WITH_IT}",
                )
                generation = await self._begin(
                    stream, Generation(progress.created, generation.number + 1, progress.floor + 1)
                )
            known.generation, known.connections = generation, connections
            return generation

    async def _is_rewound(self, stream: str, consumer: str, newest: Entry) -> bool:
        """Whether the stream holds another message at the sequence than the ledger, or has not reached it."""
        held = await self._streams.sent_at(stream, newest.sequence)
        if held is not None:
            return newest.sent_at is not None and abs(held - newest.sent_at) > SAME
        return (await self._streams.progress(stream, consumer)).last < newest.sequence

    async def _begin(self, stream: str, generation: Generation) -> Generation:
        await self._ledger.begin(stream, generation, self._now())
        log.info("stream generation begins", stream=stream, generation=generation.name, first=generation.first)
        return generation
