"""Streams and their readers, by the broker's answers: what is settled, since when, and how full a stream is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import reader_name
from ratchet.core.errors import BusUnavailable

LOOKUP_S = 5.0
"""The server removes a consumer that was made to find a place after this long, should our removal of it fail."""
AT_ONCE = 64
"""Removals of messages on their way to the broker at the same time."""
_NO_SUCH_MESSAGE = {10043, 10057}
"""Codes of the broker's refusal to remove a message that it does not hold."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a consumer is on its stream, and how full the stream is."""

    floor: int
    """Every message up to here is settled."""
    first: int
    """The oldest message that the stream still holds; one more than the newest when it holds none."""
    last: int
    """The newest message that the stream ever held."""
    messages: int
    """Messages that the stream holds."""
    bytes: int
    """Bytes of these messages."""
    max_msgs: int | None
    """Most messages that it may hold; None for no bound."""
    max_bytes: int | None
    """Most bytes that it may hold; None for no bound."""
    created: str
    """When the stream was created: a stream that was created anew counts from 1 again."""
    refuses: bool
    """Whether a full stream refuses new messages; if not, it drops its oldest ones."""

    @property
    def fill(self) -> float:
        """The share of its bound that the stream has used, by messages or by bytes, whichever is nearer."""
        by_messages = self.messages / self.max_msgs if self.max_msgs else 0.0
        return max(by_messages, self.bytes / self.max_bytes if self.max_bytes else 0.0)


class Streams:
    """Reads streams; only `drop_before`, `purge` and `erase` change one. Raises `BusUnavailable`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def connections(self) -> int:
        """How often the connection was made again: a broker cannot be replaced without breaking it."""
        return int(self._bus.nc.stats["reconnects"])

    async def progress(self, stream: str, consumer: str | None = None) -> Progress:
        """How far the consumer is. Asks for its floor first, so that it is never ahead of the stream.

        A consumer that does not exist yet, at the very first start, has settled nothing, and neither has None.
        """
        floor = 0
        with _classified(stream):
            with suppress(NotFoundError):
                if consumer is not None:
                    floor = (await self._jetstream.consumer_info(stream, consumer)).ack_floor.stream_seq
            info = await self._jetstream.stream_info(stream)
        state, bounds = info.state, info.config
        return Progress(
            floor=min(floor, state.last_seq),
            first=max(1, state.first_seq),
            last=state.last_seq,
            messages=state.messages,
            bytes=state.bytes,
            max_msgs=bounds.max_msgs if (bounds.max_msgs or 0) > 0 else None,
            max_bytes=bounds.max_bytes if (bounds.max_bytes or 0) > 0 else None,
            created=info.created.isoformat(),
            refuses=bounds.discard == "new",
        )

    async def newest_at(self, stream: str) -> datetime | None:
        """When the stream stored its newest message; None where it holds that no more, or none."""
        last = (await self.progress(stream)).last
        return await self.sent_at(stream, last) if last > 0 else None

    async def sent_at(self, stream: str, sequence: int) -> datetime | None:
        """When the stream stored the message that it holds at `sequence`; None when it holds none there."""
        with _classified(stream):
            try:
                return (await self._jetstream.get_msg(stream, seq=sequence)).time
            except NotFoundError:
                return None

    async def settled_until(self, stream: str, consumer: str) -> datetime:
        """Everything that the stream stored before this instant is settled."""
        now = self._bus.now()
        progress = await self.progress(stream, consumer)
        if progress.floor >= progress.last:
            return now
        with _classified(stream):
            try:
                after = await self._jetstream.get_msg(stream, seq=progress.floor + 1, subject=">", next=True)
            except NotFoundError:
                return now
        return min(now, after.time)

    async def last_before(self, stream: str, instant: datetime) -> int:
        """The newest sequence that was stored before an instant; 0 for none."""
        config = ConsumerConfig(
            name=reader_name(),
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=instant,
            inactive_threshold=LOOKUP_S,
            mem_storage=True,
            num_replicas=1,
        )
        with _classified(stream):
            info = await self._jetstream.add_consumer(stream, config=config)
            await self._jetstream.delete_consumer(stream, info.name)
        return int(info.delivered.stream_seq)

    async def settled_by(self, stream: str) -> Mapping[str, int]:
        """By durable consumer of the stream, up to where it has settled every message of its own."""
        with _classified(stream):
            consumers = await self._jetstream.consumers_info(stream)
        settled: dict[str, int] = {}
        for info in consumers:
            if info.config.durable_name:
                # The broker's count of what is to come is a moment late: it is no sign that nothing more came.
                place = (info.ack_floor if info.num_ack_pending else info.delivered).stream_seq
                subjects = info.config.filter_subjects or [info.config.filter_subject or ">"]
                settled[info.name] = await self.read_by(stream, place, subjects)
        return settled

    async def read_by(self, stream: str, sequence: int, subjects: Collection[str]) -> int:
        """Up to where a reader of some subjects has read all of them, when it has read up to `sequence`."""
        with _classified(stream):
            last = (await self._jetstream.stream_info(stream)).state.last_seq
            read = [last]
            for subject in subjects:
                with suppress(NotFoundError):
                    after = await self._jetstream.get_msg(stream, seq=sequence + 1, subject=subject, next=True)
                    read.append(after.seq - 1)
        return min(read)

    async def drop_before(self, stream: str, sequence: int) -> None:
        """Remove every message before `sequence`."""
        with _classified(stream):
            await self._jetstream.purge_stream(stream, seq=sequence)

    async def purge(self, stream: str) -> None:
        """Remove every message."""
        with _classified(stream):
            await self._jetstream.purge_stream(stream)

    async def erase(self, stream: str, sequences: Sequence[int]) -> None:
        """Remove single messages for good: the broker writes over them. One that is gone stays so."""
        for start in range(0, len(sequences), AT_ONCE):
            await asyncio.gather(*(self._erase(stream, sequence) for sequence in sequences[start : start + AT_ONCE]))

    async def _erase(self, stream: str, sequence: int) -> None:
        with _classified(stream):
            try:
                await self._jetstream.delete_msg(stream, sequence)
            except APIError as error:
                if error.err_code not in _NO_SUCH_MESSAGE:
                    raise

    @property
    def _jetstream(self) -> Any:
        """`Any`: nats-py types its answers only in parts."""
        return self._bus.nc.jetstream()


@contextmanager
def _classified(stream: str) -> Iterator[None]:
    try:
        yield
    except (nats.errors.Error, TimeoutError) as error:
        raise BusUnavailable(f"broker does not answer for {stream}: {error!r}") from error
