"""Messages from a JetStream pull consumer, as a steady flow in small batches.

Memory is bounded in bytes: as much as one request may bring waits here while up to two more are on their way, and a
batch ends before its bodies unpack to more than `BATCH_BYTES`. A single message always fits, whatever its size.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js.api import ConsumerConfig
from nats.js.errors import Error as JetStreamError

from ratchet.bus.envelope import plain_size, wire_size
from ratchet.bus.message import decode
from ratchet.bus.nats_client import Connection, Refused
from ratchet.core.errors import BusUnavailable

S = TypeVar("S", bound=msgspec.Struct)

log = structlog.get_logger()

PULL_EXPIRES_S = 5.0
"""How long one pull request waits at the server; a lost request is repeated after this."""
DRAIN_S = 2.0
"""How long `close` waits for what the server has sent already; the rest is delivered again after its `ack_wait`."""

REQUEST_BYTES = 8 * 1024 * 1024
"""Bytes that one request may bring, as they are on the wire; more only where the broker takes larger messages."""
BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of one batch, unpacked: typed messages and the rows made of them take several times as much."""
COMPLETED = "Batch Completed"
"""What the server says when a request has brought all its messages and fewer than its bytes: nothing is lost."""
EXPIRED = "408"
"""Its status for a request that has waited for as long as it said."""
UNDELIVERED = "Nats-Pending-Messages"
"""Its header with the number of messages that a request which is over has not brought."""
SOON_S = 1.0
"""A consumer that is given up is forgotten after so long, unless another process pulls from it."""
ANSWER_S = 5.0
"""Longest wait for what the broker knows."""
_DOES_NOT_EXIST = (10014, 10059)
"""The broker's codes for a consumer, and a stream, that do not exist."""
_NO_MESSAGE = 10037
"""Its code for a message that a stream does not hold."""
OVERHEAD = 64 * 1024
"""Room for the subjects that the server counts beside headers and body."""


class _DoesNotExist(BusUnavailable):
    """The broker has no such consumer, or no such stream."""


class _Error(msgspec.Struct, frozen=True):
    description: str = "the broker does not say why"
    err_code: int = 0


class _Refusal(msgspec.Struct, frozen=True):
    """What stands in the broker's answer in place of what was asked."""

    error: _Error | None = None


class _Stored(msgspec.Struct, frozen=True):
    time: datetime


class _Held(msgspec.Struct, frozen=True):
    """The broker's answer about a message, or that there is none."""

    message: _Stored | None = None
    error: _Error | None = None


class _Place(msgspec.Struct, frozen=True):
    consumer_seq: int = 0
    stream_seq: int = 0


class _Filters(msgspec.Struct, frozen=True):
    filter_subject: str = ""
    filter_subjects: list[str] = []


class ConsumerState(msgspec.Struct, frozen=True):
    """What the broker says of a consumer."""

    ts: datetime
    """When, by the broker's clock: the one that stamps messages."""
    num_pending: int
    """Messages that it has not delivered. The count comes a moment after the stream has acknowledged a message."""
    delivered: _Place
    num_ack_pending: int = 0
    """Messages that it has delivered and that are not settled."""
    ack_floor: _Place = _Place()
    """Up to which sequence of the stream every message of its is settled."""
    config: _Filters = _Filters()

    @property
    def sent(self) -> int:
        """Messages that it has delivered."""
        return self.delivered.consumer_seq

    @property
    def settled(self) -> int:
        """Up to which sequence of the stream it has settled every message of its own."""
        return self.ack_floor.stream_seq if self.num_ack_pending else self.delivered.stream_seq

    @property
    def total(self) -> int:
        """Messages that there are for it, from its beginning to the newest."""
        return self.sent + self.num_pending


class PullConsumer:
    """Keeps about two batches on their way, as far as their bytes allow, and hands them out with a linger.

    The consumer is created if it is missing, and again if it vanishes (`config` says how).
    """

    def __init__(self, nc: Connection, stream: str, config: ConsumerConfig, batch: int, linger_s: float) -> None:
        self._nc = nc
        self._stream = stream
        self._config = config
        self._batch = batch
        self._linger_s = linger_s
        self._name = config.durable_name or config.name or ""
        self._buffer: deque[tuple[Msg, int]] = deque()
        """What was delivered and not handed out, with its size on the wire."""
        self._arrived = asyncio.Event()
        self._interrupted = False
        self._refused: Refused | None = None
        """The broker's user of this program may not pull."""
        self._credit = 0
        self._asked_at = 0.0
        self._subscription: NatsSubscription | None = None
        self.waiting_bytes = 0
        """Bytes of what was delivered and not handed out."""
        self.reopened = 0
        """How often the consumer vanished and was created again."""

    @property
    def waiting(self) -> list[Msg]:
        """What was delivered and not handed out."""
        return [message for message, _ in self._buffer]

    async def open(self) -> None:
        """Create the consumer and subscribe to deliveries."""
        self._nc.when_refused(self._pulls_by, None)
        info = await self._nc.jetstream().add_consumer(self._stream, config=self._config)
        self._name = info.name
        self._nc.when_refused(self._pulls_by, self._on_refusal)
        if self._subscription is None:
            self._subscription = await self._nc.subscribe(self._nc.new_inbox(), cb=self._on_message)
        self._credit = 0

    async def give_up(self) -> None:
        """Let the broker forget a durable one in a moment: for that a program needs no right to remove any."""
        await self._nc.jetstream().add_consumer(self._stream, config=self._config.evolve(inactive_threshold=SOON_S))

    async def next_batch(self, wait_s: float) -> list[Msg]:
        """Up to `batch` messages: waits up to `wait_s` for the first, then at most the linger for more.

        Raises what nats-py raises, and `Refused` as soon as the broker says that this program may not pull.
        """
        await self._ask()
        if not await self._something(asyncio.get_running_loop().time() + wait_s):
            return []
        batch = [self._take()]
        size = plain_size(batch[0].headers, batch[0].data)
        until = asyncio.get_running_loop().time() + self._linger_s
        while len(batch) < self._batch and await self._something(until):
            following = self._buffer[0][0]
            size += plain_size(following.headers, following.data)
            if size > BATCH_BYTES:
                break
            batch.append(self._take())
        return batch

    def put_back(self, messages: Sequence[Msg]) -> None:
        """Hand these out again, before all others."""
        for message in reversed(messages):
            size = wire_size(message.headers, message.data)
            self._buffer.appendleft((message, size))
            self.waiting_bytes += size

    async def state(self) -> ConsumerState:
        """What the broker says of it now. Raises `BusUnavailable`, also when it does not know it.

        A request for messages goes ahead: the broker forgets a consumer that requests none for long, however often
        its state is asked.
        """
        await self._ask()
        return await ask(self._nc, f"CONSUMER.INFO.{self._stream}.{self._name}", ConsumerState)

    async def oldest_s(self) -> float:
        """See `oldest_s`, for this consumer. Raises `BusUnavailable`."""
        return await oldest_s(self._nc, self._stream, self._name)

    def interrupt(self) -> None:
        """Let `next_batch` return at once, from now on, with what it has."""
        self._interrupted = True
        self._arrived.set()

    async def close(self) -> Sequence[Msg]:
        """Stop pulling; returns what was delivered but not handed out, what was still on its way included."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            leave = subscription.drain if self._nc.is_connected else subscription.unsubscribe
            with suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await leave()
            self._nc.when_refused(self._pulls_by, None)
        return [self._take() for _ in range(len(self._buffer))]

    async def delete(self) -> None:
        """Let the broker forget it now; it would by itself, later."""
        with suppress(nats.errors.Error, JetStreamError, TimeoutError):
            await self._nc.jetstream().delete_consumer(self._stream, self._name)

    async def _something(self, until: float) -> bool:
        """Whether a message waits here, at `until` (of the loop's clock) at the latest."""
        while not self._buffer and not self._interrupted:
            if self._refused is not None:
                raise self._refused
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        return bool(self._buffer) and not self._interrupted

    def _deliver(self, message: Msg) -> None:
        size = wire_size(message.headers, message.data)
        self._buffer.append((message, size))
        self.waiting_bytes += size
        self._arrived.set()

    def _take(self) -> Msg:
        message, size = self._buffer.popleft()
        self.waiting_bytes -= size
        return message

    async def _ask(self) -> None:
        """Send a pull request when little is on its way, or when the last one must have expired."""
        assert self._subscription is not None, "open() comes first"  # noqa: S101 - a programming error
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > PULL_EXPIRES_S + 1.0:
            self._credit = 0
        most = max(REQUEST_BYTES, self._nc.max_payload + OVERHEAD)
        if len(self._buffer) > self._batch or self.waiting_bytes > most or self._credit > self._batch // 2:
            return
        self._refused = None
        request = {"batch": self._batch, "max_bytes": most, "expires": int(PULL_EXPIRES_S * 1e9)}
        await self._nc.publish(
            self._pulls_by,
            json.dumps(request).encode(),
            reply=self._subscription.subject,
        )
        self._credit += self._batch
        self._asked_at = now

    @property
    def _pulls_by(self) -> str:
        """The subject of its requests for messages."""
        return f"{self._nc.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"

    def _on_refusal(self, refused: Refused) -> None:
        self._refused, self._credit = refused, 0
        self._arrived.set()

    async def _on_message(self, message: Msg) -> None:
        # What the server says itself wants no answer; a publisher's own header `Status` means nothing here.
        status = None if message.reply else (message.headers or {}).get("Status")
        if status is None:
            self._credit = max(0, self._credit - 1)
            self._deliver(message)
            return
        description = (message.headers or {}).get("Description", status)
        if description == COMPLETED:
            return
        undelivered = int((message.headers or {}).get(UNDELIVERED, self._credit))
        self._credit = max(0, self._credit - undelivered)
        if status == EXPIRED and self._subscription is not None:  # who waits would not ask before its wait is over
            with suppress(nats.errors.Error):
                await self._ask()
            return
        if status not in {"409", "503"} or "exceed" in description.lower():
            return
        log.warning("consumer lost, creating it again", stream=self._stream, consumer=self._name, reason=description)
        with suppress(nats.errors.Error, JetStreamError):
            self._name = (await self._nc.jetstream().add_consumer(self._stream, config=self._config)).name
            self.reopened += 1


async def oldest_s(nc: Connection, stream: str, consumer: str) -> float:
    """For how many seconds the oldest message has waited that a consumer has not settled; 0 for none.

    By the broker's clock. Raises `BusUnavailable`.
    """
    state = await consumer_state(nc, stream, consumer)
    at = state and await unsettled_since(nc, stream, state)
    return max(0.0, (state.ts - at).total_seconds()) if state and at else 0.0


async def consumer_state(nc: Connection, stream: str, consumer: str) -> ConsumerState | None:
    """What the broker says of a consumer now; None without one. Raises `BusUnavailable`."""
    try:
        return await ask(nc, f"CONSUMER.INFO.{stream}.{consumer}", ConsumerState)
    except _DoesNotExist:
        return None


async def unsettled_since(nc: Connection, stream: str, state: ConsumerState) -> datetime | None:
    """When the oldest message was stored that a consumer has not settled; None without one. Raises `BusUnavailable`.

    The stream is asked: a message that it has acknowledged is missing in `num_pending` for a moment.
    """
    subjects = state.config.filter_subjects or [state.config.filter_subject or ">"]
    stored = [await stored_at(nc, stream, state.settled + 1, subject) for subject in subjects]
    return min((at for at in stored if at is not None), default=None)


async def stored_at(nc: Connection, stream: str, sequence: int, subject: str) -> datetime | None:
    """When the first message of a subject was stored, from a sequence on; None without one. Raises `BusUnavailable`.

    The stream's leader answers: to `DIRECT.GET` a copy may, that lacks for a moment what the stream has acknowledged.
    """
    question = f"STREAM.MSG.GET.{stream}"
    answer = await ask(nc, question, _Held, {"seq": sequence, "next_by_subj": subject})
    if answer.error is not None and answer.error.err_code != _NO_MESSAGE:
        raise BusUnavailable(f"cannot ask {question}: {answer.error.description}")
    return answer.message and answer.message.time


async def handed_out(nc: Connection, place: str) -> Msg | None:
    """The newest message of a `<stream>.<subject>`; None without one. Raises `BusUnavailable`, also where the program
    may not ask."""
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await nc.request(f"{nc.api}.DIRECT.GET.{place}", timeout=ANSWER_S)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(f"{place} does not answer: {error or type(error).__name__}") from error
    headers = answer.headers or {}
    if "Nats-Sequence" not in headers and headers.get("Status") != "404":
        raise BusUnavailable(f"{place} does not answer: {headers.get('Description', 'no message came')}")
    return answer if "Nats-Sequence" in headers else None


async def ask(nc: Connection, question: str, kind: type[S], body: Mapping[str, int | str] | None = None) -> S:
    """The broker's own answer about streams or a consumer. Raises `BusUnavailable`, with its words if it refuses.

    A `kind` with a field `error` gets the broker's refusals too.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await nc.request(
                f"{nc.api}.{question}", json.dumps(body).encode() if body else b"", timeout=ANSWER_S
            )
        refusal = decode(answer.data, _Refusal).error
        if refusal is not None and "error" not in kind.__struct_fields__:
            kind_of_refusal = _DoesNotExist if refusal.err_code in _DOES_NOT_EXIST else BusUnavailable
            raise kind_of_refusal(f"cannot ask {question}: {refusal.description}")
        return decode(answer.data, kind)
    except (nats.errors.Error, TimeoutError, msgspec.DecodeError) as error:
        raise BusUnavailable(f"cannot ask {question}: {error!r}") from error
