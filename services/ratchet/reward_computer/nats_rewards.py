"""Where the stream of rewards ends."""

from __future__ import annotations

from contextlib import aclosing

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.contract import Reward


async def last_reward(bus: Bus) -> int:
    """Sequence of the newest reward that is still in the stream, 0 when there is none. Raises `BusUnavailable`."""
    stream = bus.contracts.topics[Reward.TOPIC].stream
    newest = OrderedReader(bus, stream, bus.contracts.subjects(Reward.TOPIC), start=None, headers_only=True)
    async with aclosing(newest.to_end()) as batches:
        return max([one.metadata.sequence.stream async for batch in batches for one in batch], default=0)
