"""What the broker says about a stream and its readers: what is settled, since when, and how full it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from ratchet.bus.connection import Bus
from ratchet.errors import BusUnavailable

GLANCE_S = 5.0
"""The server forgets a consumer that was made to find a place, should its removal fail, after this long."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a consumer is on its stream, and how full the stream is."""

    floor: int
    """Every message up to here is settled."""
    first: int
    """The oldest message that the stream still holds; one more than the newest when it holds none."""
    last: int
    """The newest one there ever was."""
    messages: int
    """How many the stream holds."""
    bytes: int
    """How much they take."""
    max_msgs: int | None
    """How many it may hold; None for no bound."""
    max_bytes: int | None
    """How much they may take; None for no bound."""
    created: str
    """When the stream was made: one that was made anew counts from 1 again."""
    refuses: bool
    """Whether a full stream refuses new messages; if not, it drops its oldest ones."""

    @property
    def fill(self) -> float:
        """The share of its bound that the stream has used, by messages or by bytes, whichever is nearer."""
        by_messages = self.messages / self.max_msgs if self.max_msgs else 0.0
        return max(by_messages, self.bytes / self.max_bytes if self.max_bytes else 0.0)


class Streams:
    """Reads; changes nothing but by `drop_before`. Raises `BusUnavailable`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def connections(self) -> int:
        """How often the connection was made again: a broker cannot be replaced without breaking it."""
        return int(self._bus.nc.stats["reconnects"])

    async def progress(self, stream: str, consumer: str) -> Progress:
        """Where the consumer stands. The floor is asked for first, so that it is never ahead of the stream."""
        with _classified(stream):
            floor = await self._floor(stream, consumer)
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
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=instant,
            inactive_threshold=GLANCE_S,
            mem_storage=True,
            num_replicas=1,
        )
        with _classified(stream):
            info = await self._jetstream.add_consumer(stream, config=config)
            await self._jetstream.delete_consumer(stream, info.name)
        return int(info.delivered.stream_seq)

    async def settled_by(self, stream: str) -> Mapping[str, int]:
        """By durable consumer of the stream, up to where it needs nothing any more."""
        with _classified(stream):
            last = (await self._jetstream.stream_info(stream)).state.last_seq
            consumers = await self._jetstream.consumers_info(stream)
        # The floor of one that takes some subjects only stays at the last message of those.
        return {
            info.name: info.ack_floor.stream_seq if info.num_pending or info.num_ack_pending else last
            for info in consumers
            if info.config.durable_name
        }

    async def read_by(self, stream: str, sequence: int, subjects: Collection[str]) -> int:
        """Up to where a reader of some subjects needs nothing, when it has read up to `sequence`."""
        with _classified(stream):
            last = (await self._jetstream.stream_info(stream)).state.last_seq
            after = [await self._next(stream, sequence + 1, subject) for subject in subjects]
        return min([one - 1 for one in after if one is not None], default=last)

    async def _next(self, stream: str, sequence: int, subject: str) -> int | None:
        try:
            return (await self._jetstream.get_msg(stream, seq=sequence, subject=subject, next=True)).seq
        except NotFoundError:
            return None

    async def drop_before(self, stream: str, sequence: int) -> None:
        """Remove every message before `sequence`."""
        with _classified(stream):
            await self._jetstream.purge_stream(stream, seq=sequence)

    async def _floor(self, stream: str, consumer: str) -> int:
        """A consumer that was not made yet, at the very first start, has settled nothing."""
        try:
            return (await self._jetstream.consumer_info(stream, consumer)).ack_floor.stream_seq
        except NotFoundError:
            return 0

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
