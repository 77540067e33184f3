"""Reads the decisions about a role that the stream still has."""

from __future__ import annotations

from contextlib import aclosing

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.core.contract import ModelRollout


async def decisions_of(bus: Bus, role: str) -> list[ModelRollout]:
    """Those about one role, in order, from the beginning of the stream: an audit is rare, and decisions are few.

    Raises `BusUnavailable`.
    """
    stream = bus.contracts.topics[ModelRollout.TOPIC].stream
    decisions: list[ModelRollout] = []
    async with aclosing(OrderedReader(bus, stream, bus.contracts.subjects(ModelRollout.TOPIC)).to_end()) as batches:
        async for batch in batches:
            messages = [bus.read(delivery)[0].message for delivery in batch]
            decisions += [message for message in messages if isinstance(message, ModelRollout) and message.role == role]
    return decisions
