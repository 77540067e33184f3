"""The one consumer loop: batches with a linger, an outcome per message, publish first and then ack."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import Error as JetStreamError
from prometheus_client import Counter, Gauge, Histogram

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import ContractError, InvalidMessage, RatchetError, Rejected, Unavailable
from ratchet.kernel.puller import Puller
from ratchet.kernel.received import Received
from ratchet.messages import DeadLetter, Message
from ratchet.messages.base import Cause

log = structlog.get_logger()

M = TypeVar("M", bound=Message)

HANDLED = Counter("ratchet_messages_handled_total", "Messages settled, by outcome.", ["consumer", "outcome"])
HANDLING = Histogram("ratchet_batch_handling_seconds", "Time one batch took, publishing included.", ["consumer"])
UNKNOWN = Counter("ratchet_unknown_members_total", "Members that the schema does not know.", ["consumer", "topic"])
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


@dataclass(frozen=True, slots=True)
class Dead:
    """Never: copy it to the dead letters under `reason` (a token) with `detail`, and terminate it."""

    reason: str
    detail: str


Outcome = Done | Retry | Dead
BatchHandler = Callable[[Sequence[Received[Any]]], Awaitable[Sequence[Outcome]]]
"""One outcome per message, in order. `Any` because each topic has its own message type."""


@dataclass(frozen=True)
class Subscription:
    """What to consume and how."""

    stream: str
    durable: str
    handlers: Mapping[str, BatchHandler]
    """Topic -> handler. In one batch the topics are handled in this order. Older versions of a topic come upgraded."""
    batch: int = 256
    linger_s: float = 0.02
    ack_wait_s: float = 30.0
    """The server redelivers after this long without a sign of life; a running handler sends one every third of it."""
    max_deliveries: int = 5
    """A message whose handling keeps failing unexpectedly is dead after this many deliveries."""
    on_dead: Callable[[int], Awaitable[None]] | None = field(default=None, repr=False)
    """Told the sequence of every dead letter, after it was published and before it is terminated."""
    subjects: Sequence[str] | None = None
    """Narrower filters than all subjects of the topics, such as one pool of a work queue."""


def each(handler: Callable[[Received[M]], Awaitable[Sequence[Message]]]) -> BatchHandler:
    """A batch handler from one that takes a message and returns the events to publish."""

    async def one(received: Received[M]) -> Outcome:
        try:
            return Done(await handler(received))
        except Unavailable as error:
            return Retry(str(error))
        except RatchetError as error:
            return Dead("rejected", str(error))

    async def handle(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        return [await one(received) for received in batch]

    return handle


class Consumer:
    """Runs a subscription until it is stopped."""

    def __init__(self, bus: Bus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription
        self._stopping = False
        config = ConsumerConfig(
            durable_name=subscription.durable,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=subscription.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=max(1000, subscription.batch * 4),
            filter_subjects=_filters(bus, subscription),
        )
        self._puller = Puller(bus.nc, subscription.stream, config, subscription.batch, subscription.linger_s)

    async def run(self) -> None:
        """Consume until stopped; what was delivered but not begun goes back at once."""
        await self._open()
        while not self._stopping:
            batch = await self._next()
            if batch:
                await self._settle(batch)
        for message in await self._puller.close():
            with suppress(nats.errors.Error):
                await message.nak()

    async def stop(self) -> None:
        """Finish the batch at hand and return from `run`."""
        self._stopping = True
        self._puller.interrupt()

    async def _open(self) -> None:
        while not self._stopping:
            try:
                await self._puller.open()
                return
            except (nats.errors.Error, JetStreamError, TimeoutError) as error:
                log.warning("waiting for the broker", consumer=self._subscription.durable, reason=repr(error))
                await asyncio.sleep(1.0)

    async def _next(self) -> list[Msg]:
        try:
            return await self._puller.next_batch(wait_s=0.5)
        except nats.errors.Error as error:
            log.warning("cannot pull", consumer=self._subscription.durable, reason=repr(error))
            await asyncio.sleep(1.0)
            return []

    async def _settle(self, batch: Sequence[Msg]) -> None:
        """Read, handle, publish, ack. An unreadable neighbour does not hold up the rest."""
        started = time.perf_counter()
        alive = asyncio.create_task(self._heartbeat(batch))
        try:
            readable: list[tuple[Msg, Received[Message]]] = []
            for message in batch:
                received = await self._read(message)
                if received is not None:
                    readable.append((message, received))
            for handler, part in self._by_topic(readable):
                await self._handle(handler, part)
        finally:
            alive.cancel()
        HANDLING.labels(self._subscription.durable).observe(time.perf_counter() - started)

    async def _read(self, message: Msg) -> Received[Message] | None:
        try:
            received, unknown = self._bus.read(message, self._subscription.handlers)
        except ContractError as error:
            reason = "invalid" if isinstance(error, InvalidMessage) else "unknown_subject"
            await self._apply(message, Dead(reason, str(error)), None)
            return None
        if unknown:
            UNKNOWN.labels(self._subscription.durable, received.message.TOPIC).inc(unknown)
        return received

    def _by_topic(
        self, batch: Sequence[tuple[Msg, Received[Message]]]
    ) -> Iterator[tuple[BatchHandler, list[tuple[Msg, Received[Message]]]]]:
        for topic, handler in self._subscription.handlers.items():
            part = [pair for pair in batch if topic == pair[1].message.TOPIC]
            if part:
                yield handler, part

    async def _handle(self, handler: BatchHandler, part: Sequence[tuple[Msg, Received[Message]]]) -> None:
        try:
            outcomes = await handler([received for _, received in part])
        except Unavailable as error:
            outcomes = [Retry(str(error))] * len(part)
        except Exception as error:  # noqa: BLE001 - the boundary: one bad message must not stop the service
            if len(part) > 1:
                half = len(part) // 2  # a few bad ones among hundreds cost a few small batches, not hundreds
                await self._handle(handler, part[:half])
                await self._handle(handler, part[half:])
                return
            outcomes = [self._unexpected(part[0][1], error)]
        self._tell_retries(outcomes)
        pairs = zip(part, outcomes, strict=True)
        await asyncio.gather(*(self._apply(message, outcome, received) for (message, received), outcome in pairs))

    def _tell_retries(self, outcomes: Sequence[Outcome]) -> None:
        """One line for a batch, with the first reason: hundreds may wait for the same."""
        reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Retry)]
        if reasons:
            log.info("will retry", consumer=self._subscription.durable, messages=len(reasons), reason=reasons[0])

    def _unexpected(self, received: Received[Message], error: Exception) -> Outcome:
        if isinstance(error, Rejected):
            return Dead("rejected", str(error))
        log.exception("handler failed", consumer=self._subscription.durable, sequence=received.sequence, exc_info=error)
        if received.delivered >= self._subscription.max_deliveries:
            return Dead("exhausted", f"{type(error).__name__}: {error}")
        return Retry(repr(error), delay_s=min(30.0, 0.5 * 2.0**received.delivered))

    async def _apply(self, message: Msg, outcome: Outcome, received: Received[Message] | None) -> None:
        """Make the outcome true: what it publishes is durable before the message is acked."""
        try:
            outcome = await self._made_true(message, outcome, received)
        except (Unavailable, nats.errors.Error) as error:
            log.warning("not settled, will be redelivered", consumer=self._subscription.durable, reason=str(error))
            outcome = Retry(str(error))
            with suppress(nats.errors.Error):
                await message.nak(delay=1.0)
        HANDLED.labels(self._subscription.durable, type(outcome).__name__.lower()).inc()

    async def _made_true(self, message: Msg, outcome: Outcome, received: Received[Message] | None) -> Outcome:
        """The outcome in the end: a message whose answer can never be published is dead."""
        if isinstance(outcome, Done):
            try:
                await self._bus.publish_all(outcome.events, cause=received)
            except (ContractError, Rejected) as error:
                outcome = Dead("rejected", f"its answer was refused: {error}")
        if isinstance(outcome, Done):
            await message.ack()
            SEQUENCE.labels(self._subscription.durable).set(message.metadata.sequence.stream)
        elif isinstance(outcome, Dead):
            await self._bury(message, outcome)
        else:
            await message.nak(delay=outcome.delay_s)
        return outcome

    async def _bury(self, message: Msg, dead: Dead) -> None:
        meta = message.metadata
        letter = DeadLetter(
            stream=meta.stream,
            sequence=meta.sequence.stream,
            consumer=self._subscription.durable,
            original_subject=message.subject,
            reason=dead.reason,
            detail=dead.detail[:2000],
            at=self._bus.now(),
            headers=dict(message.headers or {}),
            body=base64.b64encode(message.data).decode(),
        )
        try:
            await self._bus.publish(letter, cause=_cause_in(letter.headers))
        except (ContractError, Rejected) as error:
            left_out = f"{letter.detail[:1000]} (headers and {len(message.data)} bytes of body left out: {error})"
            await self._bus.publish(msgspec.structs.replace(letter, headers={}, body="", detail=left_out[:2000]))
        if self._subscription.on_dead is not None:
            await self._subscription.on_dead(meta.sequence.stream)
        await message.term()
        log.warning("dead letter", consumer=self._subscription.durable, sequence=letter.sequence, reason=dead.detail)

    async def _heartbeat(self, batch: Sequence[Msg]) -> None:
        """Tell the server that the batch is being worked on, so that it does not deliver it again."""
        while True:
            await asyncio.sleep(self._subscription.ack_wait_s / 3)
            for message in batch:
                with suppress(nats.errors.Error):
                    await message.in_progress()


def _cause_in(headers: Mapping[str, str]) -> Cause | None:
    """The dead message as a cause, as far as its headers can be read."""
    event_id = headers.get("ce-id") or headers.get("Nats-Msg-Id")
    if event_id is None:
        return None
    return Cause(event_id=event_id, correlation_id=headers.get("ce-correlationid", event_id))


def _filters(bus: Bus, subscription: Subscription) -> list[str]:
    if subscription.subjects is not None:
        return list(subscription.subjects)
    return bus.contracts.filters(subscription.handlers)
