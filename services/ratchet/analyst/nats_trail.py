"""The trail of self-learning: what the analyst publishes of a role, and reads back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.core.contract import LearningEvent
from ratchet.core.contract.roles import role_subject
from ratchet.core.errors import ContractError

MOST_EVENTS = 1_000
"""Of an answer: the newest."""


@dataclass(frozen=True)
class Trail:
    """Raises `BusUnavailable`."""

    bus: Bus

    async def publish(self, events: Sequence[LearningEvent]) -> None:
        """Publish steps in their order; again after a fault: they have the same ids."""
        for event in events:
            await self.bus.publish(event)

    async def read(
        self, role: str, select: Callable[[LearningEvent], bool] = lambda _: True, since: datetime | None = None
    ) -> list[LearningEvent]:
        """The newest selected steps of a role, the oldest first. One that was published again counts once."""
        stream, subject = self.bus.contracts.topics[LearningEvent.TOPIC].stream, role_subject(LearningEvent.TOPIC, role)
        reader = OrderedReader(self.bus, stream, [subject], start=since or 1)
        newest: deque[LearningEvent] = deque(maxlen=MOST_EVENTS)
        seen: set[str] = set()
        async with aclosing(reader.to_end()) as batches:
            async for batch in batches:
                for delivery in batch:
                    with suppress(ContractError):  # of another version
                        event = self.bus.read(delivery)[0].message
                        if isinstance(event, LearningEvent) and event.event_id not in seen and select(event):
                            seen.add(event.event_id)
                            newest.append(event)
        return [*newest]
