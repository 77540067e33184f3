"""Reads settled messages again whose entry or row is gone: ClickHouse lost them, or was restored from a backup.

A message goes the same way as the first time, into the same row and ledger entry, so that several collectors may
restore it at once and a crash in between changes nothing.
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
from ratchet.core.contract import Message
from ratchet.core.errors import ContractError, Rejected, Unavailable
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.handlers import Collector
from ratchet.trajectory_collector.ledger import Gap, ranges

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    messages: int = 0
    unseen: tuple[Gap, ...] = ()
    """Messages that the stream does not hold."""


@dataclass(frozen=True)
class Restorer:
    """Fills gaps from the streams."""

    bus: Bus
    collectors: Mapping[str, Collector]
    """By stream."""
    batch: int
    limit: int
    """Most messages that one call reads."""

    async def restore(self, stream: str, gaps: Sequence[Gap]) -> Restored:
        """Read gaps again, oldest first, up to the limit. Raises `Unavailable`; messages read by then are stored."""
        restored, unseen = 0, list[Gap]()
        for run in runs(gaps, self.batch):
            seen, is_whole = await self._read_again(stream, run, self.limit - restored)
            restored += len(seen)
            if is_whole:
                every = (sequence for gap in run for sequence in range(gap.first, gap.last + 1))
                unseen += ranges(sequence for sequence in every if sequence not in seen)
            if restored >= self.limit:
                break
        metrics.RESTORED.labels(stream).inc(restored)
        log.warning("settled messages read again", stream=stream, messages=restored)
        return Restored(restored, tuple(unseen))

    async def _read_again(self, stream: str, run: Sequence[Gap], limit: int) -> tuple[set[int], bool]:
        """Restore a run of gaps in one pass over the stream; returns what it held, and whether the pass is complete."""
        seen: set[int] = set()
        reader = OrderedReader(self.bus, stream, start=run[0].first)
        async with aclosing(reader.to_end(run[-1].last)) as batches:
            async for read in batches:
                messages = [message for message in read if lies_in(run, message.metadata.sequence.stream)]
                for at in range(0, len(messages), self.batch):
                    await self._store(stream, messages[at : at + self.batch])
                seen |= {message.metadata.sequence.stream for message in messages}
                if len(seen) >= limit:
                    return seen, False
        return seen, True

    async def _store(self, stream: str, messages: Sequence[Msg]) -> None:
        """Store a batch. A settled message that cannot be read was a dead letter then, and is one now.

        A batch that fails is halved until the message that cannot be stored stands alone: it was a dead letter too. A
        message that fails for an unknown reason may have been stored then: it stays missing, and is tried again.
        """
        collector = self.collectors[stream]
        topics = self.bus.contracts.consumers[collector.consumer].topics
        readable: list[Received[Message]] = []
        unreadable: list[int] = []
        for message in messages:
            try:
                readable.append(self.bus.read(message, topics)[0])
            except ContractError:
                unreadable.append(message.metadata.sequence.stream)

        async def restored(part: Sequence[Received[Message]]) -> None:
            await self.bus.publish_all(await collector.restore(part))

        if readable:
            async with aclosing(in_halves(readable, restored)) as halves:
                async for part, error in halves:
                    if isinstance(error, Unavailable):
                        raise error
                    if isinstance(error, ContractError | Rejected):
                        unreadable.append(part[0].sequence)
                    elif error is not None:
                        log.error("cannot be restored", stream=stream, sequence=part[0].sequence, exc_info=error)
        if unreadable:
            await collector.dead(stream, unreadable)


def runs(gaps: Sequence[Gap], near: int) -> list[list[Gap]]:
    """Gaps, oldest first, grouped into passes over the stream: at most `near` messages lie between two of a group."""
    grouped: list[list[Gap]] = []
    for gap in gaps:
        if grouped and gap.first - grouped[-1][-1].last <= near + 1:
            grouped[-1].append(gap)
        else:
            grouped.append([gap])
    return grouped


def lies_in(run: Sequence[Gap], sequence: int) -> bool:
    """Whether one of the gaps, oldest first, has the sequence."""
    at = bisect_right(run, sequence, key=lambda gap: gap.first) - 1
    return at >= 0 and sequence <= run[at].last
