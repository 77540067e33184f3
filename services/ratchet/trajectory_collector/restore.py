"""Reads settled messages again whose entry or row is gone: ClickHouse lost them, or an older backup took its place.

What is read again goes the way it went the first time, into the same rows and ledger entries, so that several
collectors may do it at once and a crash in between changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.halving import in_halves
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.received import Received
from ratchet.contract import Message
from ratchet.errors import ContractError, Rejected, Unavailable
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.ledger import Gap, ranges

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of a restore."""

    messages: int = 0
    unseen: tuple[Gap, ...] = ()
    """What was looked for and the stream does not hold."""


class Restorer:
    """Fills gaps from the streams."""

    def __init__(self, bus: Bus, collectors: Mapping[str, Collector], batch: int, limit: int) -> None:
        """`collectors` by stream; `limit`: most messages that one call reads."""
        self._bus = bus
        self._collectors = collectors
        self._batch = batch
        self._limit = limit

    async def restore(self, stream: str, gaps: Sequence[Gap]) -> Restored:
        """Read gaps, oldest first, again, up to the limit. Raises `Unavailable`; what was read by then is stored."""
        restored, unseen = 0, list[Gap]()
        for run in runs(gaps, self._batch):
            seen, is_whole = await self._fill(stream, run, self._limit - restored)
            restored += len(seen)
            if is_whole:
                every = (sequence for gap in run for sequence in range(gap.first, gap.last + 1))
                unseen += ranges(sequence for sequence in every if sequence not in seen)
            if restored >= self._limit:
                break
        metrics.RESTORED.labels(stream).inc(restored)
        log.warning("settled messages read again", stream=stream, messages=restored)
        return Restored(restored, tuple(unseen))

    async def _fill(self, stream: str, run: Sequence[Gap], limit: int) -> tuple[set[int], bool]:
        """Restore a run of gaps with one reading of the stream; what was read, and whether it was read to the end."""
        seen: set[int] = set()
        reader = OrderedReader(self._bus, stream, start=run[0].first)
        async with aclosing(reader.to_end(run[-1].last)) as batches:
            async for read in batches:
                messages = [one for one in read if lies_in(run, one.metadata.sequence.stream)]
                for at in range(0, len(messages), self._batch):
                    await self._store(stream, messages[at : at + self._batch])
                seen |= {one.metadata.sequence.stream for one in messages}
                if len(seen) >= limit:
                    return seen, False
        return seen, True

    async def _store(self, stream: str, messages: Sequence[Msg]) -> None:
        """Store what can be read. A settled message that cannot be read was a dead letter then, and is one now."""
        collector = self._collectors[stream]
        wanted = self._bus.contracts.consumers[collector.consumer].topics
        readable: list[Received[Message]] = []
        unreadable: list[int] = []
        for message in messages:
            try:
                readable.append(self._bus.read(message, wanted)[0])
            except ContractError:
                unreadable.append(message.metadata.sequence.stream)
        if readable:
            await self._keep(collector, readable)
        if unreadable:
            await collector.dead(stream, unreadable)

    async def _keep(self, collector: Collector, batch: Sequence[Received[Message]]) -> None:
        """Store the batch, halved until what cannot be stored stands alone: that was a dead letter too.

        What fails for no reason that we know may have been stored then: it stays missing, and is tried again.
        """

        async def restored(part: Sequence[Received[Message]]) -> None:
            await self._bus.publish_all(await collector.restore(part))

        async with aclosing(in_halves(batch, restored)) as halves:
            async for part, error in halves:
                if isinstance(error, Unavailable):
                    raise error
                if isinstance(error, ContractError | Rejected):
                    await collector.dead(part[0].stream, [part[0].sequence])
                elif error is not None:
                    log.error("cannot be restored", stream=part[0].stream, sequence=part[0].sequence, exc_info=error)


def runs(gaps: Sequence[Gap], near: int) -> list[list[Gap]]:
    """Gaps, oldest first, with those together that are read in one go: at most `near` messages lie between them."""
    found: list[list[Gap]] = []
    for gap in gaps:
        if found and gap.first - found[-1][-1].last <= near + 1:
            found[-1].append(gap)
        else:
            found.append([gap])
    return found


def lies_in(run: Sequence[Gap], sequence: int) -> bool:
    """Whether one of the gaps, oldest first, has the sequence."""
    at = bisect_right(run, sequence, key=lambda gap: gap.first) - 1
    return at >= 0 and sequence <= run[at].last
