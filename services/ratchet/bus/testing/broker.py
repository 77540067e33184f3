"""A broker in memory: streams with deduplication, durable consumers, buckets, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header, PubAck, RawStreamMsg
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KeyValue

from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import Record
from ratchet.bus.nats_client import API
from ratchet.bus.received import Received
from ratchet.bus.registry import Stream, covers
from ratchet.bus.stream_configs import BUCKET
from ratchet.bus.testing.clock import START, FakeClock
from ratchet.core.errors import BusUnavailable

T = TypeVar("T")


class Killed(Exception):
    """The process died at this write."""


@dataclass
class Faults:
    """Which write fails, counted from 1 over buckets and streams, and how."""

    at: int | None = None
    """The write that fails; None for none."""
    after_effect: bool = False
    """Whether it takes effect before it fails."""
    half_done: bool = False
    """Whether, of several messages that are published together, the first half is stored before it fails."""
    error: type[Exception] = Killed
    """What it raises."""
    writes: int = 0
    """Writes so far."""
    log: list[str] = field(default_factory=list[str])
    """What was written: `publish`, or `<bucket>/<key>`."""

    def write(self, name: str, effect: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        """Run `effect`; of the one that fails before it only `half` of it, or nothing."""
        self.writes += 1
        self.log.append(name)
        hit = self.writes == self.at
        if hit and not self.after_effect:
            if self.half_done and half is not None:
                half()
            raise self.error(f"before {name} was done")
        result = effect()
        if hit:
            raise self.error(f"after {name}")
        return result


@dataclass
class Answer:
    """What the broker answers to a question."""

    data: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class FakeConnection:
    """The part of nats-py's client that this library asks about the connection, streams, consumers and buckets."""

    def __init__(self, broker: FakeBroker) -> None:
        self.is_connected = True
        self.api = API
        self.max_payload = 1_000_000
        self._broker = broker

    async def request(
        self, subject: str, question: bytes = b"", *, headers: dict[str, str] | None = None, **_: object
    ) -> Answer:
        """Answer `$JS.API.STREAM.NAMES`, `STREAM.INFO.<stream>`, `CONSUMER.INFO.<stream>.<consumer>`,
        `STREAM.MSG.GET.<stream>`, from a sequence on, `DIRECT.GET.<stream>.<subject>`, or a message to store."""
        self._broker.check()
        if not subject.startswith(API):
            return Answer(msgspec.json.encode(self._broker.append(Record(subject, headers or {}, question))))
        if (asked := subject.removeprefix("$JS.API.DIRECT.GET.")) != subject:
            stream, of = asked.partition(".")[::2]
            return self._broker.held(stream).newest_of(of)
        if (stream := subject.removeprefix("$JS.API.STREAM.MSG.GET.")) != subject:
            at = self._broker.held(stream).stored_from(**msgspec.json.decode(question))
            none = {"error": {"err_code": 10037, "description": "no message found"}}
            return Answer(msgspec.json.encode({"message": {"time": at}} if at is not None else none))
        what, name = ([*subject.removeprefix("$JS.API.").split(".INFO."), ""])[:2]
        if what == "STREAM.NAMES":
            names = [*self._broker.streams, *(f"{BUCKET}{bucket}" for bucket in self._broker.contracts.buckets)]
            return Answer(msgspec.json.encode({"streams": names, "total": len(names)}))
        stream, consumer = ([*name.split("."), ""])[:2]
        held = self._broker.held(stream)
        info = held.info() if what == "STREAM" else held.consumer_info(consumer)
        return Answer(msgspec.json.encode({"ts": self._broker.now(), **info}))

    def jetstream(self, **_: object) -> FakeJetStream:
        """What buckets are made of."""
        return FakeJetStream(self._broker)


class FakeJetStream:
    """The part of nats-py's `JetStreamContext` that buckets need, and what asks for single messages."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def key_value(self, bucket: str) -> KeyValue:
        """nats-py's own bucket, on this broker."""
        self._broker.check()
        context: Any = self
        return KeyValue(bucket, f"{BUCKET}{bucket}", f"$KV.{bucket}.", context, direct=False)

    async def stream_info(self, stream: str) -> Any:
        """What nats-py says of a stream, in parts."""
        self._broker.check()
        held = self._broker.held(stream)
        stored = sum(len(each.record.body) for each in held.messages.values())
        bucket = self._broker.contracts.buckets.get(stream.removeprefix(BUCKET))
        return SimpleNamespace(
            created=held.made,
            state=SimpleNamespace(first_seq=held.first, last_seq=held.last, bytes=stored),
            config=SimpleNamespace(max_bytes=(bucket.max_bytes if bucket else None) or -1),
        )

    async def get_msg(
        self, stream: str, seq: int | None = None, subject: str | None = None, **_: object
    ) -> RawStreamMsg:
        """A message by its sequence, or the newest of a subject."""
        self._broker.check()
        held = self._broker.held(stream)
        sequence = seq or held.newest.get(subject or "")
        if sequence not in held.messages:
            raise NotFoundError
        record = held.messages[sequence].record
        return RawStreamMsg(record.subject, sequence, record.body, headers=dict(record.headers))

    async def publish(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None, **_: object
    ) -> PubAck:
        """A write of a bucket. Raises nats-py's `APIError` where another writer was faster."""
        self._broker.check()
        bucket, key = subject.split(".", 2)[1:]
        held, headers = self._broker.held(f"{BUCKET}{bucket}"), headers or {}
        expected = headers.get(Header.EXPECTED_LAST_SUBJECT_SEQUENCE)
        if expected is not None and int(expected) != held.newest.get(subject, 0):
            raise APIError(code=400, err_code=10071, description="wrong last sequence")
        write = partial(held.replace, Record(subject, headers, payload), self._broker.now())
        sequence = write() if "KV-Operation" in headers else self._broker.faults.write(f"{bucket}/{key}", write)
        return PubAck(stream=held.spec.name, seq=sequence)


class FakeBroker:
    """What several `FakeBus`es are connected to. It can go away and come back, refuse, and hang."""

    def __init__(self, contracts: Contracts, now: Callable[[], datetime] | None = None) -> None:
        """`now` stamps messages and ends the windows of deduplication; by default a `FakeClock`."""
        self.contracts = contracts
        self.now = now or FakeClock()
        self.nc = FakeConnection(self)
        self.faults = Faults()
        self.refusing = False
        """Connected, but publishing fails."""
        self.answering = asyncio.Event()
        """Cleared while it hangs: connected, but no publishing is answered."""
        self.answering.set()
        self.asked = 0
        """Messages that were sent, whatever became of them."""
        self.duplicates = 0
        """Messages that were sent and known already."""
        self.stored: list[Record] = []
        """Messages of all streams in the order in which they were stored."""
        self.readings: dict[tuple[str, int], Received[Any]] = {}
        """What was read of them, by stream and sequence."""
        self.streams = {name: FakeStream(spec) for name, spec in contracts.streams.items()}
        self._buckets: dict[str, FakeStream] = {}

    @property
    def ids(self) -> list[str]:
        """Event ids in the order in which they were stored."""
        return [record.headers["ce-id"] for record in self.stored]

    def held(self, stream: str) -> FakeStream:
        """A stream; that of a bucket is made on first use."""
        if not stream.startswith(BUCKET):
            return self.streams[stream]
        return self._buckets.setdefault(stream, FakeStream(Stream(stream, (f"$KV.{stream.removeprefix(BUCKET)}.>",))))

    def go_away(self) -> None:
        """The connections are lost."""
        self.nc.is_connected = False

    def come_back(self) -> None:
        """The connections are there again, and publishing works."""
        self.nc.is_connected = True
        self.refusing = False
        for stream in self.streams.values():
            stream.wake()

    def check(self) -> None:
        """Raises `BusUnavailable` while it is away."""
        if not self.nc.is_connected:
            raise BusUnavailable("the broker is away")

    async def take(self, record: Record) -> None:
        """Publish one message. Raises `BusUnavailable`."""
        self.asked += 1
        await self.answering.wait()
        if self.refusing:
            raise BusUnavailable("the broker refuses")
        self.check()
        self.store(record)

    def append(self, record: Record) -> dict[str, Any]:
        """Keep a message that follows the newest one of its subject; the broker's answer."""
        if self.refusing:
            return {"error": {"err_code": 10077, "description": "maximum bytes exceeded"}}
        stream = self.streams[self.contracts.topic_of(record.subject).stream]
        if int(record.headers[Header.EXPECTED_LAST_SUBJECT_SEQUENCE]) != stream.newest.get(record.subject, 0):
            return {"error": {"err_code": 10071, "description": "wrong last sequence"}}
        self.faults.write("append", lambda: self.store(record))
        return {"seq": stream.last}

    def store(self, record: Record) -> None:
        """Keep one message, unless its stream knows it."""
        stream = self.streams[self.contracts.topic_of(record.subject).stream]
        if stream.add(record, self.now()):
            self.stored.append(record)
        else:
            self.duplicates += 1


@dataclass(frozen=True)
class Stored:
    """A message of a stream."""

    record: Record
    sequence: int
    at: datetime


class FakeStream:
    """A log of messages, and the consumers of it."""

    def __init__(self, spec: Stream) -> None:
        self.spec = spec
        self.messages: dict[int, Stored] = {}
        self.last = 0
        self.newest: dict[str, int] = {}
        """Sequence of the newest message of each subject."""
        self.made = START
        self.consumers: dict[str, FakeConsumer] = {}
        self.listeners: list[Callable[[], None]] = []
        """Called when there may be something to deliver."""
        self._known: dict[str, datetime] = {}

    @property
    def first(self) -> int:
        """Sequence of the oldest message; one more than `last` when there is none."""
        return next(iter(self.messages), self.last + 1)

    def add(self, record: Record, now: datetime) -> bool:
        """Store a message; False when it was stored before, within the window of deduplication."""
        message_id = record.headers.get("Nats-Msg-Id")
        known = self._known.get(message_id) if message_id else None
        if known is not None and (now - known).total_seconds() < self.spec.duplicate_window_s:
            return False
        if message_id:
            self._known[message_id] = now
        self._append(record, now)
        return True

    def replace(self, record: Record, now: datetime) -> int:
        """Store a message in place of the last one of its subject, as a bucket does; returns its sequence."""
        self.messages.pop(self.newest.get(record.subject, 0), None)
        self._append(record, now)
        return self.last

    def _append(self, record: Record, now: datetime) -> None:
        self.last += 1
        self.messages[self.last] = Stored(record, self.last, now)
        self.newest[record.subject] = self.last
        self.wake()

    def make_anew(self) -> None:
        """Lose everything, and count from 1 again."""
        self.messages.clear()
        self.consumers.clear()
        self._known.clear()
        self.last = 0
        self.made += timedelta(seconds=1)
        self.newest.clear()

    def remove(self, sequence: int) -> None:
        """Forget a message."""
        self.messages.pop(sequence, None)

    def newest_of(self, subject: str) -> Answer:
        """The newest message of a subject, as the server hands it out directly."""
        sequence = self.newest.get(subject)
        if sequence not in self.messages:
            return Answer(b"", {"Status": "404"})
        record = self.messages[sequence].record
        return Answer(record.body, {**record.headers, "Nats-Sequence": str(sequence)})

    def stored_from(self, seq: int, next_by_subj: str) -> datetime | None:
        """When the first message of a subject was stored, from a sequence on."""
        following = (stored for sequence, stored in self.messages.items() if sequence >= seq)
        return next((stored.at for stored in following if covers(next_by_subj, stored.record.subject)), None)

    def info(self) -> dict[str, Any]:
        """What the server says of a stream. `Any` because it is JSON."""
        return {"created": self.made, "state": {"first_seq": self.first, "last_seq": self.last}}

    def consumer_info(self, name: str) -> dict[str, Any]:
        """What the server says of a consumer, or the error that there is none."""
        consumer = self.consumers.get(name)
        if consumer is None:
            return {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
        floor = min(consumer.unsettled, default=consumer.begin) - 1
        return {
            "num_pending": sum(1 for _ in consumer.waiting()),
            "num_ack_pending": len(consumer.unsettled),
            "delivered": {"consumer_seq": consumer.sent, "stream_seq": consumer.begin - 1},
            "ack_floor": {"stream_seq": floor},
        }

    def wake(self) -> None:
        """There may be something to deliver."""
        for listener in [*self.listeners]:
            listener()


@dataclass
class _Delivery:
    count: int
    due: float
    """When it is delivered again, by the loop's clock."""


class FakeConsumer:
    """A consumer as the broker knows it: up to where it has delivered, and what was not acknowledged."""

    def __init__(self, name: str, stream: FakeStream, config: ConsumerConfig) -> None:
        self.name = name
        self.sent = 0
        """Messages that were delivered, repetitions included."""
        self._stream = stream
        self._filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
        self._acks = config.ack_policy == AckPolicy.EXPLICIT
        self._ack_wait_s = config.ack_wait or 30.0
        self.begin = config.opt_start_seq or 1
        """The sequence that is delivered next."""
        self._since = config.opt_start_time if config.deliver_policy == DeliverPolicy.BY_START_TIME else None
        self._passed_over: set[int] = set()
        """Older messages of subjects, where only the newest of each is asked for."""
        if config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT:
            self._passed_over = set(stream.messages) - set(stream.newest.values())
        self._unacked: dict[int, _Delivery] = {}

    def waiting(self) -> Iterator[Stored]:
        """What was never delivered, oldest first."""
        for sequence in range(max(self.begin, self._stream.first), self._stream.last + 1):
            stored = self._stream.messages.get(sequence)
            if stored is None or sequence in self._passed_over or (self._since is not None and stored.at < self._since):
                continue
            if not self._filters or any(covers(pattern, stored.record.subject) for pattern in self._filters):
                yield stored

    def take(self, most: int) -> list[Msg]:
        """What is to be delivered now: repetitions first."""
        now = asyncio.get_running_loop().time()
        due = sorted(sequence for sequence, delivery in self._unacked.items() if delivery.due <= now)
        again = [self._stream.messages[sequence] for sequence in due if sequence in self._stream.messages]
        fresh: list[Stored] = []
        for stored in self.waiting():
            if len(again) + len(fresh) >= most:
                break
            fresh.append(stored)
        if fresh:
            self.begin = fresh[-1].sequence + 1
        return [self._delivered(stored, now) for stored in [*again, *fresh][:most]]

    def next_due_s(self) -> float | None:
        """When something is delivered again, by the loop's clock."""
        return min((delivery.due for delivery in self._unacked.values()), default=None)

    @property
    def unsettled(self) -> Collection[int]:
        """Sequences of what was delivered and is neither acknowledged nor terminated."""
        return self._unacked.keys()

    async def publish(self, subject: str, payload: bytes = b"") -> None:
        """An answer to a delivery, as `Msg.ack` and its like send it."""
        sequence, now = int(subject.split(".")[5]), asyncio.get_running_loop().time()
        word, _, options = payload.partition(b" ")
        delivery = self._unacked.get(sequence)
        if delivery is None:
            return
        if word == Msg.Ack.Nak:
            delivery.due = now + (json.loads(options)["delay"] / 1e9 if options else 0.0)
        elif word == Msg.Ack.Progress:
            delivery.due = now + self._ack_wait_s
        else:
            del self._unacked[sequence]
            if self._stream.spec.retention == "workqueue":
                self._stream.remove(sequence)
        self._stream.wake()

    def _delivered(self, stored: Stored, now: float) -> Msg:
        self.sent += 1
        count = 1
        if self._acks:
            delivery = self._unacked.setdefault(stored.sequence, _Delivery(0, 0.0))
            delivery.count, delivery.due = delivery.count + 1, now + self._ack_wait_s
            count = delivery.count
        at = int(stored.at.timestamp() * 1e6) * 1000
        pending = 0
        reply = f"$JS.ACK.{self._stream.spec.name}.{self.name}.{count}.{stored.sequence}.{self.sent}.{at}.{pending}"
        record = stored.record
        client: Any = self  # `Msg` only publishes its answers
        return Msg(client, record.subject, reply, record.body, dict(record.headers))
