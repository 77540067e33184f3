"""What the broker says about a stream and its consumer: what is settled, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.errors
from nats.js.errors import NotFoundError

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import BusUnavailable


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
    limit: int | None
    """How many it may hold; None for no bound."""


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
        limit = self._bus.contracts.streams[stream].max_msgs
        return Progress(floor, state.first_seq, state.last_seq, state.messages, limit)

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
