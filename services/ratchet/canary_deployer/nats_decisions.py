"""Reads the decisions about a role that the stream still has."""

from __future__ import annotations

from contextlib import aclosing

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.core.contract import ModelRollout


class NatsDecisions:
    """Reads the stream of deployments from its beginning: an audit is rare, and decisions are few."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stream = bus.contracts.topics[ModelRollout.TOPIC].stream

    async def decisions_of(self, role: str) -> list[ModelRollout]:
        """The decisions about one role, in order. Raises `BusUnavailable`."""
        decisions: list[ModelRollout] = []
        reader = OrderedReader(self._bus, self._stream, self._bus.contracts.subjects(ModelRollout.TOPIC))
        async with aclosing(reader.to_end()) as batches:
            async for batch in batches:
                messages = [self._bus.read(one)[0].message for one in batch]
                decisions += [
                    message for message in messages if isinstance(message, ModelRollout) and message.role == role
                ]
        return decisions
