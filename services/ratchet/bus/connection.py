"""The connection to the broker: typed publishing, reading, buckets, and the streams themselves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js import errors as js_errors
from nats.js.api import ConsumerConfig, StreamConfig

from ratchet.bus.bodies import KEPT_S, Bodies
from ratchet.bus.clock import utc_now
from ratchet.bus.contracts import Contracts, Reading
from ratchet.bus.envelope import (
    HEADER_ROOM,
    MAX_BODY,
    REFER_ABOVE,
    REFERENCE,
    Headers,
    Record,
    Sealer,
    event_id_of,
    reference_of,
    unseal,
)
from ratchet.bus.message import Message, encode
from ratchet.bus.nats_client import Connection
from ratchet.bus.publisher import Publisher, Sending
from ratchet.bus.pull_consumer import PullConsumer, ask
from ratchet.bus.received import Causing, Received
from ratchet.bus.recent import Recent
from ratchet.bus.registry import Stream
from ratchet.bus.settings import BusSettings, without_user
from ratchet.bus.stream_configs import BUCKET, stream_config, stream_configs
from ratchet.bus.tasks import end
from ratchet.bus.upkeep import LOOK_S, Upkeep
from ratchet.core.errors import (
    BusUnavailable,
    DigestMismatch,
    InvalidMessage,
    NotFound,
    Rejected,
    Unavailable,
    UnknownSubject,
)

log = structlog.get_logger()

CANNOT_BECOME = 10052
"""nats-server's code for a stream that is there and cannot become the one that is asked for."""
DIFFERENT = 10058
"""Its code for a stream that is there with another configuration."""
FIRST_ATTEMPTS = 1
"""How often nats-py itself tries again to connect for the first time: only a number above 0 is a bound. Without one it
would try the same address for ever, and raise nothing."""
ENSURE_S = 30.0
"""Longest wait until a stream or a bucket is made: the broker writes to a disk that others may use."""
STANDING_S = 300.0
"""A consumer whose oldest message has waited for longer stands still, or is far behind."""
PING_S, UNANSWERED_PINGS = 5, 2
"""Seconds between pings; a connection on which so many in a row stay without an answer is made anew: the broker is
frozen, or what it sends is not read any more."""


READ_BYTES = 2 * 1024 * 1024
"""Bytes of bodies whose messages are kept for other readers of their stream: about a batch."""

_Delivered = tuple[str, bytes, str | None, frozenset[str]]
"""All that the reading of a body depends on: subject, body, its encoding, and the topics that are asked for."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds."""

    made: str
    """When it was made: a stream that was lost, or removed, and made again counts its messages from 1 again."""
    first: int
    """Sequence of the oldest message; one more than `last` when there is none."""
    last: int


class _StreamNames(msgspec.Struct):
    """The broker's answer to `STREAM.NAMES`, a page of it."""

    total: int = 0
    streams: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a program waits for a broker that is away: by default for ever, about once a second, with warnings."""

    deadline_s: float | None = None
    """Seconds after which connecting fails; None waits for ever."""
    settings: Callable[[], BusSettings] | None = None
    """Looks url and key up before each attempt, where they are not those of the settings: a broker that starts later
    may listen elsewhere."""
    first_pause_s: float = 0.25
    longest_pause_s: float = 1.0
    """Pauses between attempts: the first one, which doubles up to the longest."""
    reconnect_s: float = 0.25
    """Pause between attempts to come back to a broker that went away; those never end."""
    quiet: bool = False
    """Warn of the first attempt that fails only: a library inside another program does not fill that program's log."""

    async def log_error(self, error: Exception) -> None:
        """nats-py met an error on a connection that was made."""
        if self.quiet:
            log.debug("broker connection", error=repr(error))
        elif not isinstance(error, nats.errors.SlowConsumerError | nats.errors.UnexpectedEOF | OSError):
            log.warning("broker connection", error=repr(error))


class Bus:
    """One connection. Everything that is published is checked against its contract first."""

    def __init__(
        self,
        nc: Connection,
        *,
        name: str,
        contracts: Contracts,
        replicas: int,
        now: Callable[[], datetime] = utc_now,
        rules: str = "",
    ) -> None:
        self.nc = nc
        """nats-py's connection, for what this library does not do."""
        self.contracts = contracts
        self.now = now
        self.name = name
        """Of the program."""
        self._sealer = Sealer(contracts, name, now, rules)
        self.bodies: Bodies | None = None
        """Keeps what is too large for the broker: set it before the first message. Without it large messages are
        refused, and those that refer to a body wait."""
        self.replicas = replicas
        self.opened: set[str] = set()
        """Consumers and projections that were opened, by their names in the registry."""
        self.oldest_s: dict[str, float] = {}
        """For how long the oldest message of each consumer waits that runs here."""
        self.publishers: dict[str, Publisher] = {}
        """By stream."""
        self._upkeep = Upkeep(self)
        self.used: set[str] = set()
        """Streams, also those of buckets, that this program needs: `check` misses them."""
        self._readers = Counter[str]()
        """How many readers were opened, by stream."""
        self._readings = Recent[_Delivered, Reading](READ_BYTES)
        """Of streams with several readers."""
        self._held = frozenset[str]()
        """Those that the broker had when it was asked last."""
        self._asked_at = 0.0
        self._reported = ""
        self._unreached: str | None = None
        """Why the broker refused the last attempt to connect; None where it was away."""

    @classmethod
    async def connect(  # noqa: PLR0913 - keywords, each with a default
        cls,
        settings: BusSettings,
        *,
        name: str,
        contracts: Contracts,
        now: Callable[[], datetime] = utc_now,
        patience: Patience = Patience(),
        echo: bool = True,
        rules: str = "",
    ) -> Bus:
        """A bus, as soon as the broker can be reached. Raises `BusUnavailable` when `patience` ends before that.

        `echo`: whether what it tells others (`send_unconfirmed`) comes back to its own listeners. `rules`: digest of
        the rules by which the program redacts what it publishes.
        """
        bounded = contracts.bounded(settings.stream_max_bytes)
        bus = cls(Connection(), name=name, contracts=bounded, replicas=settings.replicas, now=now, rules=rules)
        try:
            async with asyncio.timeout(patience.deadline_s) as limit:
                await bus._reach_patiently(settings, patience, limit, echo=echo)
        except TimeoutError as error:
            raise BusUnavailable(
                bus._unreached or f"the broker does not answer at {without_user(settings.url)}"
            ) from error
        return bus

    async def _reach_patiently(
        self, settings: BusSettings, patience: Patience, limit: asyncio.Timeout, *, echo: bool
    ) -> None:
        pause_s = patience.first_pause_s
        while True:
            if patience.settings is not None:
                settings = patience.settings()
            url = settings.url
            try:
                return await self.reach(
                    settings,
                    url,
                    reconnect_time_wait=patience.reconnect_s,
                    error_cb=patience.log_error,
                    no_echo=not echo,
                )
            except (nats.errors.Error, TimeoutError, OSError) as error:
                self._unreached = _refused_key(settings, without_user(url)) if self.nc.login_refused else None
                if not patience.quiet or pause_s == patience.first_pause_s:
                    reason = self._unreached or repr(self.nc.last_error or error)
                    log.warning("waiting for the broker", url=without_user(url), reason=reason)
                if limit.expired():  # it cancels once, and nats-py may drop that
                    raise TimeoutError from error
            await asyncio.sleep(pause_s)
            pause_s = min(patience.longest_pause_s, 2 * pause_s)

    async def reach(self, settings: BusSettings, url: str, *, ping_s: float = PING_S, **pace: Any) -> None:
        """Connect, once; a connection that breaks later comes back by itself. Raises what nats-py raises.

        `pace`: options of `nats.connect` in which programs differ: pauses, and what is logged of errors.
        """
        credentials = self.nc.log_in_with(settings.seed_file, settings.seed_setting) if settings.seed_file else {}
        await self.nc.connect(
            url,
            name=self.name,
            max_reconnect_attempts=FIRST_ATTEMPTS,
            connect_timeout=2,
            ping_interval=cast("int", ping_s),  # it is slept for: any number does
            max_outstanding_pings=UNANSWERED_PINGS,
            disconnected_cb=self._connection_lost,
            reconnected_cb=self._connection_back,
            **credentials,
            **pace,
        )
        self.nc.options["max_reconnect_attempts"] = -1  # from now on nats-py comes back by itself, for ever

    async def close(self) -> None:
        """Publish what is still queued, then close the connection."""
        await self._upkeep.stop()
        await asyncio.gather(*(publisher.drain() for publisher in self.publishers.values()))
        try:
            await self.nc.close()
        except (RuntimeError, OSError, nats.errors.Error) as error:  # uvloop's, for a transport that broke before
            log.warning("the connection did not close cleanly", reason=repr(error))

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self.nc.is_connected

    @property
    def largest(self) -> int:
        """Bytes of the largest message that it takes, where its stream keeps none for long."""
        return self.nc.max_payload if self.bodies is None else MAX_BODY

    async def check(self) -> str | None:
        """Readiness: None while connected to a broker that has what this bus was asked for, and takes what it
        publishes; else the reason."""
        if not self.is_connected:
            return "the broker is not connected"
        if missing := await self._missing_of(self.used):
            return missing
        return next((refusal for publisher in self.publishers.values() if (refusal := publisher.refusal)), None)

    async def check_consumers(self) -> str | None:
        """A note: consumers whose oldest message has waited too long. None while all come forward."""
        standing = [
            f"the oldest message of {consumer} has waited for {waits_s / 60:.0f} min"
            for consumer, waits_s in sorted(self.oldest_s.items())
            if waits_s > STANDING_S
        ]
        return "; ".join(standing) or None

    @property
    def stream_names(self) -> frozenset[str]:
        """The streams of the contracts, also those of buckets."""
        return frozenset({*self.contracts.streams, *(f"{BUCKET}{bucket}" for bucket in self.contracts.buckets)})

    async def missing(self) -> frozenset[str]:
        """Those of them that the broker does not have. Raises `BusUnavailable`."""
        return self.stream_names - await _stream_names(self.nc)

    async def _missing_of(self, used: set[str]) -> str | None:
        now = time.monotonic()
        if self._held.issuperset(used) and now - self._asked_at < LOOK_S:
            return None
        try:
            self._held = await _stream_names(self.nc)
        except BusUnavailable as error:  # perhaps its user may not ask: what is not known is no reason
            log.debug("not known which streams there are", reason=str(error))
            self._held = frozenset(used)
        self._asked_at = now
        missing = [
            f"bucket {name.removeprefix(BUCKET)}" if name.startswith(BUCKET) else f"stream {name}"
            for name in used - self._held
        ]
        if not missing:
            self._reported = ""
            return None
        maker = self.contracts.made_by
        reason = f"the broker has no {', no '.join(sorted(missing))}" + (f": {maker} makes it" if maker else "")
        if reason != self._reported:
            log.warning("streams or buckets are missing", reason=reason)
        self._reported = reason
        return reason

    async def publish(self, message: Message, *, cause: Causing | None = None) -> None:
        """Check and store one message; returns when the stream has it.

        Raises `InvalidMessage`, `BusUnavailable` (outcome unknown: publishing again is safe) or `Rejected`.
        """
        await self.publish_all([message], cause=cause)

    async def publish_all(self, messages: Sequence[Message], *, cause: Causing | None = None) -> None:
        """Store several messages; returns when all are stored. None is sent when one of them is invalid."""
        sealed = [self.seal(message, cause) for message in messages]
        records = [await self.refer(record) for record in sealed]
        results = await asyncio.gather(*map(self._enqueue, records), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def refer(self, record: Record) -> Record:
        """The record as the broker is to take it: a large body is kept elsewhere by now, and referred to.

        It stays as it is where it is not large, where nothing keeps bodies, and where what does is away or refuses it
        while the broker takes it. Raises `Unavailable` or `Rejected` for one that neither takes.
        """
        if not self._is_referred(record):
            return record
        assert self.bodies is not None  # noqa: S101 - see above
        referring, reference = record.referring()
        try:
            await self.bodies.put(self._place_of(record.subject), reference.sha256, record.body)
        except (Unavailable, Rejected) as error:
            if too_large(record, self.nc.max_payload):
                raise
            log.warning("the broker takes a large body itself", bytes=reference.size, reason=str(error))
            return record
        return referring

    def _is_referred(self, record: Record) -> bool:
        if self.bodies is None or len(record.body) <= REFER_ABOVE:
            return False
        age_s = self.contracts.streams[self.contracts.topic_of(record.subject).stream].max_age_s
        return age_s is not None and age_s <= KEPT_S

    def _place_of(self, subject: str) -> str:
        return subject.removeprefix(self.contracts.topic_of(subject).name).removeprefix(".")

    async def fetch_body(self, message: Msg) -> None:
        """Give a delivery the body that it refers to. Where none is kept that fits, `read` refuses the message.

        Raises `Unavailable` while it cannot be known.
        """
        reference = reference_of(message.headers)
        if reference is None or message.headers is None:
            return
        if self.bodies is None:
            raise Unavailable(f"{self.name} reads no store of bodies, and {message.subject} refers to one")
        with suppress(NotFound, DigestMismatch, Rejected, UnknownSubject):
            body = await self.bodies.get(self._place_of(message.subject), reference.sha256)
            message.data = body
            message.headers = {name: value for name, value in message.headers.items() if name != REFERENCE}

    async def publish_record(self, record: Record) -> None:
        """Store a message that was sealed before (a spooled one); returns when the stream has it.

        Raises `Unavailable`, or `Rejected`: also for one that is larger than the broker takes.
        """
        record = await self.refer(record)
        if reason := too_large(record, self.nc.max_payload):
            raise Rejected(reason)
        await self._enqueue(record)

    def seal(self, message: Message, cause: Causing | None = None) -> Record:
        """The record that `publish` would send. Raises `UnknownSubject` or `InvalidMessage`."""
        record = self._sealer.seal(message, cause)
        if not self._is_referred(record) and (reason := too_large(record, self.nc.max_payload)):
            raise InvalidMessage(reason)
        return record

    def read(self, message: Msg, topics: Collection[str] = ()) -> tuple[Received[Message], int]:
        """A delivery as a typed message, and how many members its schema does not know.

        One of an older version is upgraded to the topic that is one of `topics`; by default it stays as it is.

        Raises `UnknownSubject` or `InvalidMessage`.
        """
        headers: Headers = dict(message.headers or {})
        reading = self._reading(message, headers, topics)
        event_id = event_id_of(headers, reading.message)
        meta = message.metadata
        received = Received(
            message=reading.message,
            subject=message.subject,
            stream=meta.stream,
            sequence=meta.sequence.stream,
            delivered=meta.num_delivered or 1,
            event_id=event_id,
            time=meta.timestamp,
            correlation_id=headers.get("ce-correlationid", event_id),
            causation_id=headers.get("ce-causationid"),
            headers=headers,
            body=reading.body,
        )
        return received, reading.unknown

    def _reading(self, message: Msg, headers: Headers, topics: Collection[str]) -> Reading:
        """What a body says: read once for all readers of the stream in this program, as long as they are close."""
        key = message.subject, message.data, headers.get("content-encoding"), frozenset(topics)
        reading = self._readings.get_value(key)
        if reading is None:
            reading = self.contracts.read_as(message.subject, unseal(headers, message.data), topics)
            if self._readers[message.metadata.stream] > 1 and len(reading.body) <= READ_BYTES:
                self._readings.put_value(key, reading, len(reading.body))
        return reading

    def send_unconfirmed(self, message: Message) -> bool:
        """Send a message to everyone who listens now, before this returns; its stream stores it if it can.

        Nothing is checked or confirmed, and the message may be lost: for what a later message says again, or what its
        readers can do without. False when it was not sent.
        """
        return self.is_connected and self.nc.send_now(message.subject, encode(message))

    def pull(self, stream: str, config: ConsumerConfig, *, batch: int, linger_s: float) -> PullConsumer:
        """Deliveries of a consumer with this configuration, in batches."""
        self.used.add(stream)
        self._readers[stream] += 1
        return PullConsumer(self.nc, stream, config, batch, linger_s)

    async def extent(self, stream: str) -> Extent:
        """Which messages a stream holds now, and which stream of its name it is. Raises `BusUnavailable`."""
        jetstream: Any = self.nc.jetstream()  # nats-py types its answers only in parts
        try:
            info = await jetstream.stream_info(stream)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"broker does not answer for {stream}: {error!r}") from error
        # A stream that never held a message says 0 for both.
        first = max(info.state.first_seq, 1)
        return Extent(made=info.created.isoformat(), first=first, last=info.state.last_seq)

    async def ensure_streams(self) -> None:
        """Create or update every stream and bucket of the contracts. Running it again changes nothing.

        From then on it is done again whenever one is missing and whenever the connection comes back: a broker may come
        back without its data. Raises `BusUnavailable`.
        """
        await self.make_streams()
        self._upkeep.make_from_now_on()

    async def make_streams(self) -> None:
        """The same, once."""
        for config in stream_configs(self.contracts, self.replicas):
            await _ensure(self, config)

    async def _connection_lost(self) -> None:
        """What is being published fails: its answers cannot come."""
        for publisher in self.publishers.values():
            publisher.connection_lost()

    async def _connection_back(self) -> None:
        """The broker may have lost its data meanwhile."""
        self._held = frozenset()
        self._upkeep.reconnected()

    def _enqueue(self, record: Record) -> asyncio.Future[None]:
        stream = self.contracts.topic_of(record.subject).stream
        if stream not in self.publishers:
            self.used.add(stream)
            self.publishers[stream] = self._publisher_of(self.contracts.streams[stream])
        sending = Sending(record, asyncio.get_running_loop().create_future())
        self.publishers[stream].enqueue(sending)
        return sending.done

    def _publisher_of(self, stream: Stream) -> Publisher:
        if stream.storage == "memory":  # it is not expected to outlive the broker
            return Publisher(self.nc, stream.name, atomic=stream.allow_atomic)
        self._upkeep.begin()
        acknowledged, wake = self._upkeep.acknowledged, self._upkeep.wake
        return Publisher(self.nc, stream.name, atomic=stream.allow_atomic, acknowledged=acknowledged, on_rewound=wake)


def _refused_key(settings: BusSettings, url: str) -> str:
    """What to say of a broker that asks for another key than this program's."""
    given = f"is {settings.seed_file}" if settings.seed_file else "is not set"
    return (
        f"the broker at {url} refuses this program's key: {settings.seed_setting}, which {given}, names the file with"
        " the key of a user that the broker knows (`ratchet broker list` has them)"
    )


def too_large(record: Record, limit: int) -> str | None:
    """Why a broker that takes `limit` bytes at most refuses a record; None if it does not."""
    size = record.size + HEADER_ROOM
    refused = 0 < limit < size
    return f"headers and body of {size} bytes are larger than the broker takes ({limit})" if refused else None


async def _stream_names(nc: Connection) -> frozenset[str]:
    """The streams that the broker has, those of buckets included. Raises `BusUnavailable`."""
    held: set[str] = set()
    while True:
        page = await ask(nc, "STREAM.NAMES", _StreamNames, {"offset": len(held)})
        held.update(page.streams or ())
        if len(held) >= page.total or not page.streams:
            return frozenset(held)


async def ensure_stream(bus: Bus, name: str) -> None:
    """Create or update one stream: for a program that needs no other, of one that the broker holds in memory.

    Raises `BusUnavailable`.
    """
    await _ensure(bus, stream_config(bus.contracts.streams[name], bus.replicas))


async def _ensure(bus: Bus, config: StreamConfig) -> None:
    """Create or update what has this configuration: one request where it is missing, or is so already."""
    jetstream: Any = bus.nc.jetstream(timeout=ENSURE_S)
    with _made(config.name or ""):
        try:
            await jetstream.add_stream(config)
        except js_errors.BadRequestError as error:
            if error.err_code != DIFFERENT:
                raise
            held = (await jetstream.stream_info(config.name)).config
            await jetstream.update_stream(_as_large(config, held))


def _as_large(config: StreamConfig, held: StreamConfig) -> StreamConfig:
    """A bucket of which a person has raised the bound, or taken it away, keeps that: it might refuse every value."""
    asked, has = config.max_bytes or 0, held.max_bytes or 0
    larger = asked > 0 and not 0 < has <= asked
    is_bucket = (config.name or "").startswith(BUCKET)
    return config.evolve(max_bytes=held.max_bytes) if larger and is_bucket else config


@contextmanager
def _made(what: str) -> Iterator[None]:
    try:
        yield
    except js_errors.APIError as error:
        advice = f"; `nats stream info {what}` shows what is there, see Upgrade in docs/operations.md"
        refused = advice if error.err_code == CANNOT_BECOME else ""
        raise BusUnavailable(f"the broker cannot make {what}: {error.description}{refused}") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(f"the broker cannot make {what}: {error!r}") from error


class BackgroundConnection:
    """A bus that is connected while the program serves already: a component with `run`, `stop` and `check`.

    Connects once, however long that takes, and closes the connection in the end.
    """

    def __init__(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        self._connect = connect
        self._bus: asyncio.Future[Bus] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()

    async def bus(self) -> Bus:
        """The connection, once there is one. Raises `BusUnavailable` when there will be none."""
        return await asyncio.shield(self._bus)

    @property
    def connected(self) -> Bus | None:
        """The bus while it is connected."""
        bus = self._bus.result() if self._bus.done() and self._bus.exception() is None else None
        return bus if bus is not None and bus.is_connected else None

    async def run(self) -> None:
        """Hold the connection until stopped. Raises what connecting raises."""

        async def connected() -> Bus:
            return await self._connect()

        connecting = asyncio.create_task(connected())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            was_stopped = not connecting.done()
            await end(connecting)
            if connecting.cancelled() or (was_stopped and connecting.exception() is not None):
                return
            self._bus.set_result(connecting.result())
            await stopping
        finally:
            await end(connecting, stopping)
            if not connecting.cancelled() and connecting.exception() is None:
                await connecting.result().close()
            if not self._bus.done():
                self._bus.set_exception(BusUnavailable("the program stopped before the broker was connected"))
                self._bus.exception()  # seen, also when no caller waits for it

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def check(self) -> str | None:
        """Readiness: see `Bus.check`."""
        bus = self.connected
        return "the broker is not connected" if bus is None else await bus.check()
