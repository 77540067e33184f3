"""Messages of a stream in their order and without gaps, by a consumer that needs no acks and no cleaning up.

The broker numbers what it delivers to a consumer. A reader that misses a number, or whose consumer the broker has
forgotten, raises `BusUnavailable`: its owner knows up to where it has come and opens another one there. What was gone
from the stream before is no gap in these numbers: who must know it compares `Bus.extent` with the place it reads from.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import TypeVar

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError, NotFoundError

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import SUMMARY
from ratchet.bus.message import Value
from ratchet.bus.pull_consumer import ConsumerState
from ratchet.core.errors import BusUnavailable, InvalidMessage, NotFound, Unavailable

log = structlog.get_logger()

M = TypeVar("M", bound=Value)

BATCH = 512
"""Most messages of one batch."""
INACTIVE_S = 30.0
"""The server forgets the consumer of a reader that died after this long."""
PATIENCE_S = 10.0
"""A broker that has sent nothing for this long, although it has more, is not answering."""


class OrderedReader:
    """Reads some subjects of a stream. Not for work queues: their messages belong to the workers."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        subjects: Sequence[str] = (),
        *,
        start: int | datetime | None = 1,
        headers_only: bool = False,
        linger_s: float = 0.01,
    ) -> None:
        """No `subjects` are all. `start`: a sequence, an instant, or None for the newest message of each subject.

        A sequence means something in one stream only: compare `Bus.extent` with the one it was noted of.
        """
        by_sequence, by_time = isinstance(start, int), isinstance(start, datetime)
        sequence, time = DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME
        config = ConsumerConfig(
            name=reader_name(),
            ack_policy=AckPolicy.NONE,
            deliver_policy=sequence if by_sequence else time if by_time else DeliverPolicy.LAST_PER_SUBJECT,
            opt_start_seq=start if isinstance(start, int) else None,
            opt_start_time=start if isinstance(start, datetime) else None,
            filter_subjects=list(subjects) or ([">"] if start is None else None),
            headers_only=headers_only,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        self._bus = bus
        self._stream = stream
        self._has_bodies = not headers_only
        self._deliveries = bus.pull(stream, config, batch=BATCH, linger_s=linger_s)
        self.count = 0
        """Messages that were handed out."""
        self.newest: Msg | None = None
        """The last one of them."""
        self.total = 0
        """How many messages there were when `to_end` began."""

    @property
    def has_waiting(self) -> bool:
        """Whether messages were delivered that are not handed out."""
        return bool(self._deliveries.waiting)

    async def open(self) -> None:
        """Begin to read. Raises `BusUnavailable`."""
        try:
            await self._deliveries.open()
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {self._stream}: {error!r}") from error

    async def next(self, wait_s: float) -> list[Msg]:
        """The next messages; waits up to `wait_s` for the first. Raises `BusUnavailable` when one is missing."""
        try:
            batch = await self._deliveries.next_batch(wait_s)
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot read {self._stream}: {error!r}") from error
        if self._deliveries.reopened:
            raise BusUnavailable(f"cannot read {self._stream}: the broker forgot the reader; read again")
        for message in batch:
            if message.metadata.sequence.consumer != self.count + 1:
                raise BusUnavailable(f"cannot read {self._stream}: a message was lost on the way; read again")
            if self._has_bodies:
                await _fetch_body(self._bus, message)
            self.count += 1
            self.newest = message
        return batch

    async def state(self) -> ConsumerState:
        """What the broker says of this reader. Raises `BusUnavailable`."""
        return await self._deliveries.state()

    def is_at_end(self, state: ConsumerState) -> bool:
        """Whether all messages that there were at `state` have been handed out."""
        return state.num_pending == 0 and state.sent == self.count

    async def to_end(self, until: int | None = None) -> AsyncGenerator[list[Msg]]:
        """All messages that are there when reading begins, up to the sequence `until`; opens and closes the reader.

        Raises `BusUnavailable`; then nothing is known. Who stops before the end closes the iterator
        (`contextlib.aclosing`): the consumer goes with it.
        """
        await self.open()
        try:
            self.total = (await self.state()).total
            while self.count < self.total:
                seen = self.count
                batch = await self.next(PATIENCE_S)
                if not batch:
                    raise BusUnavailable(f"cannot read {self._stream}: nothing came for {PATIENCE_S:g} s")
                batch = batch[: self.total - seen]
                within = [message for message in batch if until is None or message.metadata.sequence.stream <= until]
                yield within
                if len(within) < len(batch):
                    return
        finally:
            await self.close()
            await self.delete()

    async def delete(self) -> None:
        """Let the broker forget the reader now; it would by itself, after `INACTIVE_S`."""
        await self._deliveries.delete()

    async def close(self) -> None:
        """Stop reading."""
        await self._deliveries.close()


def reader_name() -> str:
    """A name for a consumer that no other program knows: one with a name alone can be kept apart by permissions."""
    return f"reader-{uuid.uuid4().hex}"


def read_summary(bus: Bus, message: Msg, kind: type[M]) -> M | None:
    """The summary in a delivery's headers; None without a valid one: then the body says more."""
    text = (message.headers or {}).get(SUMMARY)
    if text is None:
        return None
    try:
        return bus.contracts.read_summary(message.subject, text, kind)
    except InvalidMessage as error:
        log.warning("summary not read", subject=message.subject, reason=str(error))
        return None


async def fetch(bus: Bus, message: Msg) -> Msg:
    """A delivery with the body that its consumer leaves out (`headers_only`).

    Raises `NotFound` when the stream no longer holds it, or `BusUnavailable`.
    """
    place = message.metadata
    try:
        stored = await bus.nc.jetstream().get_msg(place.stream, place.sequence.stream)
    except NotFoundError as error:
        raise NotFound(f"{place.stream} no longer holds {place.sequence.stream}") from error
    except (nats.errors.Error, TimeoutError) as error:
        raise BusUnavailable(f"{place.stream} does not hand out {place.sequence.stream}: {error!r}") from error
    whole = Msg(bus.nc, message.subject, message.reply, stored.data or b"", stored.headers)
    await _fetch_body(bus, whole)
    return whole


async def _fetch_body(bus: Bus, message: Msg) -> None:
    """See `Bus.fetch_body`. Raises `BusUnavailable`: who reads in order begins again with this message."""
    try:
        await bus.fetch_body(message)
    except Unavailable as error:
        raise BusUnavailable(f"cannot read {message.subject}: {error}") from error
