"""The one consumer loop: batches with a linger, an outcome per message, publish first and then ack."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import Error as JetStreamError
from prometheus_client import Counter, Gauge, Histogram

from ratchet.bus.connection import Bus
from ratchet.bus.deadletter import (
    IN_STREAM,
    KEPT_OF_BATCH,
    LARGEST_HEADERS,
    LARGEST_KEPT,
    REDACTED,
    WHOLE,
    DeadLetter,
    with_message,
)
from ratchet.bus.envelope import MAX_ID, REFERENCE, Headers, plain_size, unseal, wire_size
from ratchet.bus.failures import causes_of, failure, frames, reason_of
from ratchet.bus.halving import in_halves
from ratchet.bus.message import Cause, Message
from ratchet.bus.received import Received
from ratchet.bus.registry import AS_DECLARED, Bounds, ConsumerSpec, check_handled, declared
from ratchet.bus.tasks import with_pauses
from ratchet.core.errors import (
    BusUnavailable,
    ContractError,
    DigestMismatch,
    InvalidMessage,
    NotFound,
    RatchetError,
    Rejected,
    Unavailable,
    Unreadable,
)

log = structlog.get_logger()

M = TypeVar("M", bound=Message)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
"""Pauses while something that a handler depends on is away: new messages would fare no better."""
WAITING = 20_000
"""Messages of one consumer that may be delivered and not settled: while some wait for others, for minutes, those
behind them must still come. What is in memory is bounded elsewhere, in bytes."""
REMEMBERED = 10_000
"""Messages whose unexpected failures are remembered."""

MEASURE_S = 15.0
"""How often it is asked how long the oldest message has waited."""
FORGOTTEN_S = 86_400.0
"""After so long without a request the broker forgets an optional consumer: it begins again with what there is then."""
OPEN_S = 1.0
"""How often a consumer that is not open looks whether it can be, and whether it is needed by now."""

_TOKEN = re.compile(r"[a-z_]+")
"""A reason that a subject can hold."""
FINAL = (ContractError, DigestMismatch, NotFound, Rejected)
"""What a handler raises for a message that will fare no better the next time."""

HANDLED = Counter("ratchet_messages_handled_total", "Messages settled, by outcome.", ["consumer", "outcome"])
HANDLING = Histogram("ratchet_batch_handling_seconds", "Time one batch took, publishing included.", ["consumer"])
UNKNOWN = Counter("ratchet_unknown_members_total", "Members that the schema does not know.", ["consumer", "topic"])
OLDEST = Gauge(
    "ratchet_consumer_oldest_unsettled_seconds", "Age of the oldest message that is not settled.", ["consumer"]
)
SEQUENCE = Gauge("ratchet_consumer_sequence", "Newest stream sequence that was settled.", ["consumer"])


@dataclass(frozen=True, slots=True)
class Done:
    """Handled: publish `events`, then ack."""

    events: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: deliver it again after `delay_s`."""

    reason: str
    delay_s: float = 1.0
    away: bool = False
    """Because something is away that the next message needs as well: the consumer pauses."""


@dataclass(frozen=True, slots=True)
class Later:
    """Not yet: the handler gets it again with the next batch, before all others, and the broker hears nothing of it.

    For messages that would hold up others of their batch. A handler settles or retries one of these at the same time:
    the consumer makes no pause.
    """


@dataclass(frozen=True, slots=True)
class Dead:
    """Never: copy it to the dead letters under `reason` (a token) with `detail`, and terminate it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Handling it raised `error`: the consumer retries, or gives it up."""

    error: Exception


Outcome = Done | Retry | Later | Dead | Failed
BatchHandler = Callable[[Sequence[Received[Any]]], Awaitable[Sequence[Outcome]]]
"""One outcome per message, in order. `Any` because each topic has its own message type."""


Handlers = Mapping[type[Message], BatchHandler]
"""Message type -> what handles a batch of them."""
Delivery = tuple[Msg, Received[Message]]
"""A delivery, and what was read of it."""
Needed = Callable[[], Awaitable[bool]]
"""Whether a consumer has anything to do with messages by now. Raises `Unavailable` or `Unreadable`."""
OnDead = Callable[[Sequence[int]], Awaitable[None]]
"""Called with the sequences of dead messages before their dead letters are published, at every attempt at that."""


def each(handler: Callable[[Received[M]], Awaitable[Sequence[Message]]]) -> BatchHandler:
    """A batch handler from one that takes a message and returns the events to publish.

    What it raises means what it means of a batch handler, for this message alone: `Unavailable` waits, what is one of
    `FINAL` makes a dead letter, and everything else is tried again, up to `max_deliveries` times.
    """

    async def handle(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for received in batch:
            try:
                outcomes.append(Done(await handler(received)))
            except Exception as error:  # noqa: BLE001 - the boundary: the consumer decides what an error means
                outcomes.append(Failed(error))
        return outcomes

    return handle


def subscribe(  # noqa: PLR0913 - keywords, each with a default
    bus: Bus,
    name: str,
    handlers: Handlers,
    *,
    parameters: Mapping[str, str] = MappingProxyType({}),
    bounds: Bounds = AS_DECLARED,
    on_dead: OnDead | None = None,
    needed: Needed | None = None,
) -> Consumer:
    """The consumer that the registry calls `name`; its `run` hands messages to `handlers`, by their type.

    `parameters` fill the places in its name, such as `<pool>`; `bounds` are this installation's own. `on_dead` is
    called with the sequences of dead messages before their dead letters are published. Until `needed` says so nothing
    is delivered, and the broker keeps no place for it: then it begins with what the stream holds. Raises `ConfigError`
    unless the registry has such a consumer, with these parameters and exactly these messages.
    """
    spec = declared("consumer", name, bus.contracts.consumers).filled(parameters)
    consumer = Consumer(bus, spec.within(bounds), handlers, on_dead, needed)
    bus.opened.add(name)
    return consumer


def newest_copies(batch: Sequence[Msg]) -> list[Msg]:
    """Each message once: what was frozen for longer than `ack_wait_s` has copies, and the ack of one is that of all.

    In a stream that was made anew other messages have the sequences of before, and another time.
    """
    return list({(one.metadata.sequence.stream, one.metadata.timestamp): one for one in batch}.values())


class Consumer:
    """A durable consumer: pulls batches, hands them to handlers, and makes their outcomes true, until it is stopped.

    Made by `subscribe`. One batch at a time goes through these steps:

    1. `_read`: each delivery becomes a typed message by the open view, or is dead.
    2. `_handle`: topic by topic, in the order of the registry. A batch whose handler raises is handled in halves.
    3. `_apply`: what an outcome publishes is stored, then the message is acked; a retry goes back with its delay, what
       is for later to the front of those that wait here.
    4. `_dead_letter`: `on_dead` first, then the dead letters are stored, then the message is terminated.

    A crash between any two steps delivers again what was not acked; the ids of what was published make that harmless.
    In memory are the batch at hand and what the `PullConsumer` has in advance, both bounded in bytes.
    """

    def __init__(
        self,
        bus: Bus,
        spec: ConsumerSpec,
        handlers: Handlers,
        on_dead: OnDead | None = None,
        needed: Needed | None = None,
    ) -> None:
        """Raises `ConfigError` unless there is a handler for each topic of `spec`, and no other."""
        by_topic = {kind.TOPIC: handler for kind, handler in handlers.items()}
        check_handled(f"consumer {spec.name}", spec.topics, by_topic)
        self._bus = bus
        self._spec = spec
        self._handlers = {topic: by_topic[topic] for topic in spec.topics}
        self._on_dead = on_dead
        self._needed = needed
        # Looked up once: each look-up costs a message as much as its ack.
        self._handled = {kind: HANDLED.labels(spec.name, kind.__name__.lower()) for kind in (Done, Retry, Dead)}
        self._sequence = SEQUENCE.labels(spec.name)
        self._stopping = asyncio.Event()
        self._at_hand: Sequence[Msg] = ()
        self._failures: dict[int, int] = {}
        self._away = False
        config = ConsumerConfig(
            durable_name=spec.name,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=spec.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=max(WAITING, spec.batch * 4),
            filter_subjects=list(spec.subjects) or bus.contracts.filters(spec.topics),
            inactive_threshold=FORGOTTEN_S if spec.optional else None,
        )
        self._deliveries = bus.pull(spec.stream, config, batch=spec.batch, linger_s=spec.linger_s)

    async def run(self) -> None:
        """Consume until stopped; what was delivered but not begun goes back at once."""
        await self._open()
        beside = [asyncio.create_task(self._heartbeat()), asyncio.create_task(self._measure())]
        pause_s = 0.0
        try:
            while not self._stopping.is_set():
                batch = await self._pull()
                if not batch:
                    continue
                self._away = False
                await self._settle(batch)
                pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s)) if self._away else 0.0
                if pause_s:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._stopping.wait()
        finally:
            for task in beside:
                task.cancel()
            self._bus.oldest_s.pop(self._spec.name, None)
        for message in await self._deliveries.close():
            with suppress(nats.errors.Error):
                await message.nak()

    async def stop(self) -> None:
        """Finish the batch at hand and return from `run`."""
        self._stopping.set()
        self._deliveries.interrupt()

    async def _open(self) -> None:
        given_up = False
        while not self._stopping.is_set():
            try:
                if self._needed is None or await self._needed():
                    await self._deliveries.open()
                    return
                if not given_up:  # it may have been needed before
                    await self._deliveries.give_up()
                given_up = True
            except (nats.errors.Error, JetStreamError, TimeoutError, Unavailable, Unreadable) as error:
                log.warning("waiting to open", consumer=self._spec.name, reason=repr(error))
            await asyncio.sleep(OPEN_S)

    async def _pull(self) -> list[Msg]:
        try:
            return await self._deliveries.next_batch(wait_s=0.5)
        except nats.errors.Error as error:
            log.warning("cannot pull", consumer=self._spec.name, reason=repr(error))
            await asyncio.sleep(1.0)
            return []

    async def _settle(self, batch: Sequence[Msg]) -> None:
        """Read, handle, publish, ack. What cannot be read comes last and at once: it holds up nothing that can."""
        started = time.perf_counter()
        self._at_hand = batch = newest_copies(batch)
        try:
            readable: list[Delivery] = []
            unreadable: list[tuple[Msg, Dead]] = []
            async for message in with_pauses(batch):
                if REFERENCE in (message.headers or ()) and not await self._fetch_body(message):
                    continue
                received = self._read(message)
                if isinstance(received, Dead):
                    unreadable.append((message, received))
                else:
                    readable.append((message, received))
            for topic, handler in self._handlers.items():
                part = [delivery for delivery in readable if topic == delivery[1].message.TOPIC]
                if part:
                    await self._handle(handler, part)
            await self._dead_letter(unreadable)
        finally:
            self._at_hand = ()
        HANDLING.labels(self._spec.name).observe(time.perf_counter() - started)

    async def _fetch_body(self, message: Msg) -> bool:
        """Whether it is known by now what body a message refers to; else it is delivered again."""
        try:
            await self._bus.fetch_body(message)
        except Unavailable as error:
            self._away = True
            await self._not_settled([message], error)
            return False
        return True

    def _read(self, message: Msg) -> Received[Message] | Dead:
        try:
            received, unknown = self._bus.read(message, self._handlers)
        except ContractError as error:
            reason = "invalid" if isinstance(error, InvalidMessage) else "unknown_subject"
            return Dead(reason, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: what cannot even be read must not stop the service
            log.error("cannot be read", consumer=self._spec.name, **failure(error, self._bus.contracts.mask))
            return Dead("invalid", f"cannot be read: {type(error).__name__}")
        if unknown:
            UNKNOWN.labels(self._spec.name, received.message.TOPIC).inc(unknown)
        return received

    async def _handle(self, handler: BatchHandler, part: Sequence[Delivery]) -> None:
        async def handled(deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
            try:
                outcomes = await handler([received for _, received in deliveries])
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise RuntimeError("the handler waited for something that was cancelled") from error
            if len(outcomes) != len(deliveries):
                raise TypeError(f"the handler returned {len(outcomes)} outcomes for {len(deliveries)} messages")
            return outcomes

        async with aclosing(in_halves(part, handled)) as halves:
            async for deliveries, result in halves:
                outcomes = [Failed(result)] * len(deliveries) if isinstance(result, Exception) else result
                await self._apply_all(deliveries, outcomes)

    async def _apply_all(self, deliveries: Sequence[Delivery], outcomes: Sequence[object]) -> None:
        """`outcomes`: what the handler gave, which may be anything."""
        acking: list[tuple[Msg, Received[Message], Done | Retry]] = []
        applying: list[tuple[Msg, Received[Message], Done | Retry]] = []
        dead: list[tuple[Msg, Dead]] = []
        waiting: list[str] = []
        later: list[Msg] = []
        for (message, received), outcome in zip(deliveries, outcomes, strict=True):
            decided = outcome
            if isinstance(decided, Later):
                later.append(message)
                continue
            if not isinstance(decided, Done | Retry | Dead):
                other = TypeError(f"the handler returned {type(decided).__name__} as an outcome")
                decided = self._after_failure(received, decided.error if isinstance(decided, Failed) else other)
            if isinstance(decided, Dead):
                dead.append((message, decided))
                continue
            if isinstance(decided, Retry):
                waiting.append(decided.reason)
                self._away = self._away or decided.away
            only_ack = isinstance(decided, Done) and not decided.events
            (acking if only_ack else applying).append((message, received, decided))
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                # Its frames hold the batch, and the batch's frame holds it: garbage, for which few searches look.
                outcome.error.__traceback__ = None
        self._deliveries.put_back(later)
        if waiting:  # one line for a batch, with the first reason: hundreds may wait for the same
            log.info(
                "will retry",
                consumer=self._spec.name,
                messages=len(waiting),
                reason=self._bus.contracts.mask(waiting[0]),
            )
        for delivery in acking:  # a task for each would cost more than the ack
            await self._apply(*delivery)
        await asyncio.gather(*(self._apply(*delivery) for delivery in applying))
        await self._dead_letter(dead)

    def _after_failure(self, received: Received[Message], error: Exception) -> Retry | Dead:
        """What becomes of a message whose handler raised; unexpected errors are tried again, later and later."""
        if isinstance(error, Unavailable) or (isinstance(error, ExceptionGroup) and error.subgroup(Unavailable)):
            return Retry(reason_of(error, self._bus.contracts.mask), away=True)
        if isinstance(error, FINAL):
            return Dead("rejected", str(error))
        described = failure(error, self._bus.contracts.mask)
        causes = [failure(cause, self._bus.contracts.mask) for cause in causes_of(error)]
        trace = frames(error.__traceback__)
        log.error(
            "handler failed",
            consumer=self._spec.name,
            sequence=received.sequence,
            **described,
            trace=trace,
            causes=causes,
        )
        reason = f"{described['error']}: {described['reason']}"
        failures = self._failures.pop(received.sequence, 0) + 1
        if failures >= self._spec.max_deliveries:
            return Dead("exhausted", reason)
        self._failures[received.sequence] = failures
        if len(self._failures) > REMEMBERED:
            del self._failures[next(iter(self._failures))]  # the one that failed longest ago
        return Retry(reason, delay_s=min(30.0, 0.5 * 2.0**failures))

    async def _apply(self, message: Msg, received: Received[Message], outcome: Done | Retry) -> None:
        """Make the outcome true: what it publishes is durable before the message is acked."""
        try:
            if isinstance(outcome, Retry):
                await message.nak(delay=outcome.delay_s)
            else:
                if len(outcome.events):  # raises for what is no sequence
                    await self._bus.publish_all(outcome.events, cause=received)
                await message.ack()
                self._failures.pop(received.sequence, None)
                self._sequence.set(received.sequence)
        except (ContractError, Rejected) as error:  # its answer can never be published
            await self._dead_letter([(message, Dead("rejected", f"its answer was refused: {error}"))])
        except (RatchetError, nats.errors.Error) as error:
            await self._not_settled([message], error)
        except Exception as error:  # noqa: BLE001 - the boundary: what a handler returned cannot be published
            decided = self._after_failure(received, error)
            if isinstance(decided, Dead):
                await self._dead_letter([(message, decided)])
            else:
                await self._not_settled([message], error, decided.delay_s)
        else:
            self._count(outcome)

    async def _dead_letter(self, dead: Sequence[tuple[Msg, Dead]]) -> None:
        """Account for all of them at once, which takes as long as for one; then keep and end each."""
        if not dead:
            return
        try:
            if self._on_dead is not None:
                await self._on_dead([message.metadata.sequence.stream for message, _ in dead])
        except Exception as error:  # noqa: BLE001 - the boundary: the account is the host's own code
            await self._not_settled([message for message, _ in dead], error)
            return
        letters = await asyncio.to_thread(self._letters, dead)
        kept = zip(dead, letters, strict=True)
        await asyncio.gather(*(self._keep_and_end(message, why, letter) for (message, why), letter in kept))

    def _letters(self, dead: Sequence[tuple[Msg, Dead]]) -> list[DeadLetter]:
        """Runs in a thread: to search texts for secrets takes a while, so a batch keeps a bounded part of its own."""
        letters: list[DeadLetter] = []
        room = KEPT_OF_BATCH
        for message, why in dead:
            size = max(len(message.data), plain_size(message.headers, message.data))
            shown = size <= min(LARGEST_KEPT, room)
            room -= size if shown else 0
            letters.append(self._letter(message, why, body_shown=shown))
        return letters

    def _letter(self, message: Msg, dead: Dead, *, body_shown: bool) -> DeadLetter:
        meta, headers = message.metadata, dict(message.headers or {})
        letter = self._bus.contracts.dead_letter(
            stream=meta.stream,
            sequence=meta.sequence.stream,
            consumer=self._spec.name,
            original_subject=message.subject,
            reason=dead.reason,
            detail=self._bus.contracts.mask(dead.detail)[:2000],
            at=self._bus.now(),
            headers={},
            body="",
            stored_at=meta.timestamp,
        )
        if wire_size(headers, b"") > LARGEST_HEADERS:
            return msgspec.structs.replace(letter, kept=IN_STREAM)
        try:
            plain = _plain(headers, message.data) if body_shown else None
            return with_message(letter, headers, message.data, plain, self._bus.contracts.redact)
        except Exception as error:  # noqa: BLE001 - the boundary: what cannot be searched is not shown, and stops nothing
            log.error("cannot be shown", consumer=self._spec.name, **failure(error, self._bus.contracts.mask))
            return msgspec.structs.replace(letter, kept=IN_STREAM)

    async def _keep_and_end(self, message: Msg, dead: Dead, letter: DeadLetter) -> None:
        """Keep the dead letter of a message, then terminate it."""
        headers = dict(message.headers or {})
        event_id = headers.get("ce-id") or headers.get("Nats-Msg-Id") or ""
        correlation_id = headers.get("ce-correlationid") or event_id
        cause = Cause(event_id=event_id, correlation_id=correlation_id) if 0 < len(event_id) <= MAX_ID else None
        try:
            try:
                await self._bus.publish(letter, cause=cause)
            except (ContractError, Rejected) as error:
                detail = f"{letter.detail[:1000]} (headers left out: {error})"[:2000]
                reason = dead.reason if _TOKEN.fullmatch(dead.reason) else "rejected"
                kept = REDACTED if letter.kept == WHOLE else letter.kept
                bare = msgspec.structs.replace(letter, reason=reason, headers={}, detail=detail, kept=kept)
                await self._bus.publish(bare)
            await message.term()
        except (RatchetError, nats.errors.Error) as error:
            await self._not_settled([message], error)
        else:
            log.warning("dead letter", consumer=self._spec.name, sequence=letter.sequence, reason=letter.detail)
            self._count(dead)

    async def _not_settled(self, messages: Sequence[Msg], error: Exception, delay_s: float = 1.0) -> None:
        """After a fault on the way they are delivered again."""
        reason = reason_of(error, self._bus.contracts.mask)
        log.warning("not settled, will be redelivered", consumer=self._spec.name, messages=len(messages), reason=reason)
        for message in messages:
            with suppress(nats.errors.Error):
                await message.nak(delay=delay_s)
            self._count(Retry(reason))

    def _count(self, outcome: Done | Retry | Dead) -> None:
        self._handled[type(outcome)].inc()

    async def _measure(self) -> None:
        """Show how long the oldest message waits; what waits in a work queue is work to come."""
        while self._bus.contracts.streams[self._spec.stream].retention != "workqueue":
            await asyncio.sleep(MEASURE_S)
            with suppress(BusUnavailable):  # what cannot be asked shows as the broker's fault
                waits_s = await self._deliveries.oldest_s()
                self._bus.oldest_s[self._spec.name] = waits_s
                OLDEST.labels(self._spec.name).set(waits_s)

    async def _heartbeat(self) -> None:
        """Report what is at hand, or waits here to be handled, as in progress: the server does not deliver it again.

        Not what was answered already: the server would deliver a message that is to come again soon after `ack_wait_s`.
        """
        while True:
            await asyncio.sleep(self._spec.ack_wait_s / 3)
            for message in [*self._at_hand, *self._deliveries.waiting]:
                if not message.is_acked:
                    with suppress(nats.errors.Error):
                        await message.in_progress()


def _plain(headers: Headers, body: bytes) -> bytes:
    """The body as people read it, unpacked where it can be."""
    try:
        return unseal(headers, body)
    except InvalidMessage:
        return body
