"""Consumers and projections of tests, which no registry declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Consumer, Handlers, OnDead
from ratchet.bus.message import Message
from ratchet.bus.projection import KeyOf, Projection
from ratchet.bus.received import Received
from ratchet.bus.registry import ConsumerSpec, ProjectionSpec
from ratchet.rules.alerts import gap_alert

S = TypeVar("S")


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
