"""What the broker says about a stream and its consumer: what is settled, since when, and old messages again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import BusUnavailable
from ratchet.kernel.puller import Puller

INACTIVE_S = 30.0
"""The server forgets the ephemeral consumer of a reading that died after this long."""
SILENCE_S = 2.0
"""A stream that gives nothing for this long has nothing more to give."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a consumer is on its stream."""

    floor: int
    """Every message up to here is settled."""
    first: int
    """The oldest message that the stream still holds."""
    last: int
    """The newest one."""
    messages: int
    """How many the stream holds."""


class Streams:
    """Reads; changes nothing but by `trim`. Raises `BusUnavailable`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def progress(self, stream: str, consumer: str) -> Progress:
        """Where the consumer stands. The floor is asked for first, so that it is never ahead of the stream."""
        try:
            floor = await self._floor(stream, consumer)
            state = (await self._jetstream.stream_info(stream)).state
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"broker does not answer for {stream}: {error!r}") from error
        return Progress(floor, state.first_seq, state.last_seq, state.messages)

    async def _floor(self, stream: str, consumer: str) -> int:
        """A consumer that was not made yet, at the very first start, has settled nothing."""
        try:
            return (await self._jetstream.consumer_info(stream, consumer)).ack_floor.stream_seq
        except NotFoundError:
            return 0

    async def settled_until(self, stream: str, consumer: str) -> datetime:
        """Everything that the stream stored before this instant is settled."""
        now = self._bus.now()
        progress = await self.progress(stream, consumer)
        if progress.floor >= progress.last:
            return now
        try:
            after = await self._jetstream.get_msg(stream, seq=progress.floor + 1, subject=">", next=True)
        except NotFoundError:
            return now
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"broker does not answer for {stream}: {error!r}") from error
        return min(now, after.time)

    async def read(self, stream: str, first: int, last: int, batch: int) -> AsyncIterator[list[Msg]]:
        """The messages from `first` to `last` that the stream still holds, in order."""
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        puller = Puller(self._bus.nc, stream, config, batch=batch, linger_s=0.02)
        try:
            await puller.open()
            reached = first - 1
            while reached < last:
                messages = await puller.next_batch(wait_s=SILENCE_S)
                if not messages:
                    return
                reached = messages[-1].metadata.sequence.stream
                yield [one for one in messages if one.metadata.sequence.stream <= last]
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {stream} again: {error!r}") from error
        finally:
            await puller.close()

    async def trim(self, stream: str) -> int:
        """Drop what every durable consumer of the stream has settled; returns up to where."""
        try:
            consumers = await self._jetstream.consumers_info(stream)
            settled = min(info.ack_floor.stream_seq for info in consumers if info.config.durable_name)
            await self._jetstream.purge_stream(stream, seq=settled + 1)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot trim {stream}: {error!r}") from error
        return settled

    @property
    def _jetstream(self) -> Any:
        """`Any`: nats-py types its answers only in parts."""
        return self._bus.nc.jetstream()
