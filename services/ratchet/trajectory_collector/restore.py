"""Reads settled messages again that the ledger lacks: ClickHouse lost them, or an older backup took its place.

What is read again goes the way it went the first time, into the same rows and ledger lines, so that several
collectors may do it at once and a crash in between changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
from nats.aio.msg import Msg

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import ContractError, Rejected, Unavailable
from ratchet.kernel.received import Received
from ratchet.messages import Message
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts, Gap
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.nats_streams import Progress, Streams

log = structlog.get_logger()


class Restorer:
    """Fills the gaps of the ledger from the streams."""

    def __init__(self, bus: Bus, facts: Facts, collectors: Mapping[str, Collector], batch: int, limit: int) -> None:
        """`collectors` by stream; `limit`: most messages that one call reads."""
        self._bus = bus
        self._facts = facts
        self._streams = Streams(bus)
        self._collectors = collectors
        self._batch = batch
        self._limit = limit

    async def restore(self, stream: str, consumer: str, progress: Progress) -> None:
        """Read again what the ledger lacks up to the floor and the stream still holds, up to the limit."""
        restored = 0
        for gap in await self._facts.gaps(stream, consumer, progress.floor):
            held = Gap(max(gap.first, progress.first), gap.last)
            if held.first > held.last:
                continue
            restored += await self._fill(stream, held, self._limit - restored)
            if restored >= self._limit:
                break
        metrics.RESTORED.labels(stream).inc(restored)
        log.warning("settled messages read again", stream=stream, messages=restored)

    async def _fill(self, stream: str, gap: Gap, limit: int) -> int:
        count = 0
        async for messages in self._streams.read(stream, gap.first, gap.last, self._batch):
            await self._store(stream, messages)
            count += len(messages)
            if count >= limit:
                break
        return count

    async def _store(self, stream: str, messages: Sequence[Msg]) -> None:
        """Store what can be read. A settled message that cannot be read was a dead letter then, and is one now."""
        collector = self._collectors[stream]
        wanted = collector.table()
        readable: list[Received[Message]] = []
        for message in messages:
            try:
                readable.append(self._bus.read(message, wanted)[0])
            except ContractError:
                await collector.dead(stream, message.metadata.sequence.stream)
        if readable:
            await self._keep(collector, readable)

    async def _keep(self, collector: Collector, batch: Sequence[Received[Message]]) -> None:
        """Store the batch, halved until what cannot be stored stands alone: that was a dead letter too.

        What fails for no reason that we know may have been stored then: it stays missing, and is tried again.
        """
        try:
            await self._bus.publish_all(await collector.restore(batch))
        except Unavailable:
            raise
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                await self._keep(collector, batch[:half])
                await self._keep(collector, batch[half:])
            elif isinstance(error, (ContractError, Rejected)):
                await collector.dead(batch[0].stream, batch[0].sequence)
            else:
                log.exception("cannot be restored", stream=batch[0].stream, sequence=batch[0].sequence, exc_info=error)
