"""Consumers and projections of tests, which no registry declares, and every stored message of one kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, Handlers, OnDead
from ratchet.bus.message import Message
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.projection import KeyOf, Projection
from ratchet.bus.received import Received
from ratchet.bus.registry import ConsumerSpec, ProjectionSpec
from ratchet.core.rules.alerts import gap_alert

S = TypeVar("S")
M = TypeVar("M", bound=Message)


def consuming(
    bus: Bus, handlers: Handlers, durable: str = "worker", on_dead: OnDead | None = None, **bounds: Any
) -> Consumer:
    """A consumer of the stream that holds these messages."""
    topics = tuple(kind.TOPIC for kind in handlers)
    (stream,) = {bus.contracts.topics[topic].stream for topic in topics}
    spec = ConsumerSpec(durable, "test", stream, topics, **{"linger_s": 0.01, **bounds})
    return Consumer(bus, spec, handlers, on_dead)


def projecting(
    bus: Bus,
    name: str,
    message: type[Message],
    *,
    kind: type[S],
    step: Callable[[S | None, Received[Message]], S],
    key_of: KeyOf = lambda _: "all",
    bucket: str = "baselines",
) -> Projection[S]:
    """A projection of one kind of message; a gap is an alert."""
    spec = ProjectionSpec(name, "test", bus.contracts.topics[message.TOPIC].stream, (message.TOPIC,), bucket)
    return Projection(bus, spec, kind=kind, key_of=key_of, step=step, on_gap=gap_alert)


async def messages_of(bus: Bus, kind: type[M], *subjects: str) -> list[M]:
    """Every stored message of a kind, oldest first; `subjects` narrow them."""
    stream = bus.contracts.topics[kind.TOPIC].stream
    reader = OrderedReader(bus, stream, subjects or bus.contracts.subjects(kind.TOPIC))
    async with aclosing(reader.to_end()) as batches:
        messages = [bus.read(raw)[0].message async for batch in batches for raw in batch]
    return [message for message in messages if isinstance(message, kind)]
