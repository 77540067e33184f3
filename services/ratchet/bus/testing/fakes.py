"""A bus on a broker in memory: values pass through JSON and messages through their contract, as with a real one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from ratchet.bus.connection import Bus, too_large
from ratchet.bus.envelope import Record
from ratchet.bus.message import Message
from ratchet.bus.pull_consumer import PullConsumer
from ratchet.bus.received import Causing, Received
from ratchet.bus.testing.broker import FakeBroker, FakeConsumer, Faults, Stored
from ratchet.core.errors import BusUnavailable, Rejected

A = TypeVar("A", bound=msgspec.Struct)
M = TypeVar("M", bound=Message)
V = TypeVar("V")

_numbers = itertools.count(1)


class FakeBus(Bus):
    """A `Bus` whose broker is in memory. Publishing is at once: one write of `faults` for each call."""

    def __init__(self, broker: FakeBroker, *, name: str = "test", now: Callable[[], datetime] | None = None) -> None:
        nc: Any = broker.nc  # asked whether it is connected, and what it takes at most
        super().__init__(nc, name=name, contracts=broker.contracts, replicas=1, now=now or broker.now)
        self.broker = broker

    @property
    def faults(self) -> Faults:
        """Which write of this broker fails."""
        return self.broker.faults

    def unavailable_at(self, write: int) -> None:
        """The broker does not answer at this write."""
        self.faults.at, self.faults.error = write, BusUnavailable

    async def publish_all(self, messages: Sequence[Message], *, cause: Causing | None = None) -> None:
        """Store several messages: none when one is invalid; when the write fails, as many as `faults` says."""
        records = [await self.refer(self.seal(message, cause)) for message in messages]
        if records:
            await self.broker.answering.wait()
            self.broker.check()
            half = records[: len(records) // 2]
            self.faults.write(
                "publish", lambda: [*map(self.broker.store, records)], lambda: [*map(self.broker.store, half)]
            )

    async def publish_record(self, record: Record) -> None:
        """Store a message that was sealed before."""
        record = await self.refer(record)
        if reason := too_large(record, self.nc.max_payload):
            raise Rejected(reason)
        await self.broker.take(record)

    def arrive(self, messages: Sequence[Message]) -> None:
        """Messages of another program: they are stored, and no fault of ours can touch them."""
        for message in messages:
            self.broker.store(self.seal(message))

    def stored(self, stream: str, after: int = 0) -> list[Received[Any]]:
        """The messages of a stream behind a sequence, as a consumer gets them. `Any`: each may be of another type."""
        held = self.broker.streams[stream]
        sequences = range(max(after + 1, held.first), held.last + 1)
        return [self._received(stream, held.messages[sequence]) for sequence in sequences if sequence in held.messages]

    def published(self, kind: type[M] = Message) -> list[M]:
        """The messages of a kind that are in the streams, by stream and in order; by default all."""
        every = [received.message for stream in self.broker.streams for received in self.stored(stream)]
        return [message for message in every if isinstance(message, kind)]

    def pull(self, stream: str, config: ConsumerConfig, *, batch: int, linger_s: float) -> PullConsumer:
        """Deliveries of a consumer with this configuration, in batches."""
        return _FakePullConsumer(self.broker, stream, config, batch, linger_s)

    async def ensure_streams(self) -> None:
        """They are there."""
        self.broker.check()

    async def close(self) -> None:
        """Nothing is queued: publishing is at once."""

    def _received(self, stream: str, stored: Stored) -> Received[Any]:
        readings, place = self.broker.readings, (stream, stored.sequence)
        if place not in readings:
            at, record = int(stored.at.timestamp() * 1e6) * 1000, stored.record
            reply = f"$JS.ACK.{stream}.none.1.{stored.sequence}.{stored.sequence}.{at}.0"
            client: Any = None  # it is read, and never answered
            readings[place] = self.read(Msg(client, record.subject, reply, record.body, dict(record.headers)))[0]
        return readings[place]


async def connect(broker: FakeBroker, name: str = "test") -> FakeBus:
    """A bus on `broker`, for what connects by itself."""
    return FakeBus(broker, name=name)


class _FakePullConsumer(PullConsumer):
    """Deliveries from a stream in memory."""

    def __init__(self, broker: FakeBroker, stream: str, config: ConsumerConfig, batch: int, linger_s: float) -> None:
        nc: Any = broker.nc
        super().__init__(nc, stream, config, batch, linger_s)
        self._broker = broker
        self._held = broker.held(stream)
        self._consumer: FakeConsumer | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._broker.check()
        self._name = self._name or f"ephemeral-{next(_numbers)}"
        made = FakeConsumer(self._name, self._held, self._config)
        self._consumer = self._held.consumers.setdefault(self._name, made)
        self._held.listeners.append(self._fill)

    async def close(self) -> Sequence[Msg]:
        if self._fill in self._held.listeners:
            self._held.listeners.remove(self._fill)
        if self._timer is not None:
            self._timer.cancel()
        return [self._take() for _ in range(len(self._buffer))]

    async def delete(self) -> None:
        self._held.consumers.pop(self._name, None)

    async def give_up(self) -> None:
        self._broker.check()
        await self.delete()

    @property
    def _opened(self) -> FakeConsumer:
        assert self._consumer is not None, "open() comes first"  # noqa: S101 - a programming error
        return self._consumer

    async def _ask(self) -> None:
        self._fill()

    def _fill(self) -> None:
        """Take over what is to be delivered, and come back when something is to be delivered again."""
        room = self._batch - len(self._buffer)
        if room <= 0 or not self._broker.nc.is_connected:
            return
        for message in self._opened.take(room):
            self._deliver(message)
        loop, due = asyncio.get_running_loop(), self._opened.next_due_s()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._fill) if due is not None else None
