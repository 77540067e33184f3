"""A part of a stream read again, from an instant or a sequence on, without leaving a consumer behind."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from ratchet.bus.connection import Bus
from ratchet.bus.pull_consumer import PullConsumer
from ratchet.errors import BusUnavailable

INACTIVE_S = 30.0
"""The server forgets the consumer of a reader that died after this long."""
PATIENCE_S = 10.0
"""A broker that has sent nothing for this long, although it has more, is not answering."""


class Replay:
    """Messages of some subjects of a stream, oldest first. Not for work queues: those belong to their workers."""

    def __init__(
        self, bus: Bus, stream: str, subjects: Sequence[str], since: datetime | int, until: int | None = None
    ) -> None:
        """No `subjects` are all. `since`: an instant, or a sequence.

        `until`: the last sequence that is wanted; by default the last one there is when reading begins.
        A sequence means something in one stream only: compare `Bus.extent` with the one it was noted of.
        """
        self._bus = bus
        self._stream = stream
        self._until = until
        self._name = f"replay-{uuid.uuid4().hex[:12]}"
        config = ConsumerConfig(
            name=self._name,
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME
            if isinstance(since, datetime)
            else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_time=since if isinstance(since, datetime) else None,
            opt_start_seq=None if isinstance(since, datetime) else since,
            filter_subjects=list(subjects) or None,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        self._puller = PullConsumer(bus.nc, stream, config, batch=512, linger_s=0.01)
        self.total = 0
        """How many messages there are from the beginning on, known once reading has begun."""

    async def batches(self) -> AsyncGenerator[list[Msg]]:
        """All messages that were there when reading began. Raises `BusUnavailable`; then nothing is known.

        Whoever stops before the end closes the iterator (`contextlib.aclosing`): the consumer goes with it.
        """
        try:
            await self._puller.open()
            jetstream = self._bus.nc.jetstream()
            self.total = (await jetstream.consumer_info(self._stream, self._name)).num_pending or 0
            seen = 0
            while seen < self.total:
                batch = await self._puller.next_batch(PATIENCE_S)
                self._check(batch, seen)
                batch = batch[: self.total - seen]
                seen += len(batch)
                wanted = [one for one in batch if self._until is None or one.metadata.sequence.stream <= self._until]
                yield wanted
                if len(wanted) < len(batch):
                    return
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {self._stream}: {error!r}") from error
        finally:
            await self._puller.close()
            with suppress(nats.errors.Error, JetStreamError, TimeoutError):
                await self._bus.nc.jetstream().delete_consumer(self._stream, self._name)

    def _check(self, batch: Sequence[Msg], seen: int) -> None:
        """A batch follows on the ones before. What the stream dropped meanwhile ends the reading, and says so."""
        if self._puller.reopened:
            raise BusUnavailable(f"cannot read {self._stream}: the broker forgot the reader; try again")
        if not batch:
            raise BusUnavailable(f"cannot read {self._stream}: nothing came for {PATIENCE_S:g} s")
        for number, message in enumerate(batch, seen + 1):
            if message.metadata.sequence.consumer != number:
                raise BusUnavailable(f"cannot read {self._stream}: a message was lost on the way; try again")
