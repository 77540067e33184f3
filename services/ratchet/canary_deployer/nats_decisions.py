"""Reads the decisions about a role that the stream still has."""

from __future__ import annotations

from contextlib import aclosing, suppress

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.core.contract import ModelRollout
from ratchet.core.errors import ContractError


async def decisions_of(bus: Bus, role: str) -> list[ModelRollout]:
    """Those about one role, in order, from the beginning of the stream: an audit is rare, and decisions are few.

    What cannot be read is none: where it was one, the chain of hashes breaks. Raises `BusUnavailable`.
    """
    stream = bus.contracts.topics[ModelRollout.TOPIC].stream
    decisions: list[ModelRollout] = []
    async with aclosing(OrderedReader(bus, stream, bus.contracts.subjects(ModelRollout.TOPIC)).to_end()) as batches:
        async for batch in batches:
            for delivery in batch:
                with suppress(ContractError):
                    message = bus.read(delivery)[0].message
                    if isinstance(message, ModelRollout) and message.role == role:
                        decisions.append(message)
    return decisions
