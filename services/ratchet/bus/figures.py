"""What the broker says of a stream and its durable consumers, for people and alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nats.errors

from ratchet.bus.connection import Bus
from ratchet.bus.pull_consumer import oldest_s
from ratchet.core.errors import BusUnavailable


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """A durable consumer's distance to the end of its stream."""

    name: str
    lag: int
    """Messages that it has not been given."""
    unacknowledged: int
    redelivered: int
    oldest_s: float
    """For how many seconds the oldest message has waited that it has not settled; 0 for none."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The size of a stream, and its durable consumers."""

    name: str
    messages: int
    bytes: int
    consumers: tuple[ConsumerFigures, ...]


async def stream_figures(bus: Bus, name: str) -> StreamFigures:
    """Those of one stream. Raises `BusUnavailable`, also for a stream that the broker does not have."""
    jetstream: Any = bus.nc.jetstream()  # nats-py types its answers only in parts
    try:
        info, consumers = await jetstream.stream_info(name), await jetstream.consumers_info(name)
        durable = [consumer for consumer in consumers if consumer.config.durable_name]
        oldest = [await oldest_s(bus.nc, name, consumer.name) for consumer in durable]
    except (nats.errors.Error, TimeoutError) as error:
        raise BusUnavailable(f"the broker says nothing of {name}: {error or type(error).__name__}") from error
    return StreamFigures(
        name,
        info.state.messages,
        info.state.bytes,
        tuple(
            ConsumerFigures(
                consumer.name,
                lag=consumer.num_pending or 0,
                unacknowledged=consumer.num_ack_pending or 0,
                redelivered=consumer.num_redelivered or 0,
                oldest_s=waits_s,
            )
            for consumer, waits_s in zip(durable, oldest, strict=True)
        ),
    )
