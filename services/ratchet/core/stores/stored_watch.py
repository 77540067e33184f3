"""Which messages the collector has stored, for services that must not query ClickHouse before.

The collector announces each stored batch (`Stored`) before it acks it, and the broker knows up to which sequence the
collector has settled everything. From both, a `StoredWatch` knows of any message whether it is settled, and no service
has to poll ClickHouse. A settled message may still have no row: it is a dead letter, or the broker was restored
meanwhile and gives its sequence out again. So a reader queries ClickHouse once, as soon as the message is settled.
The ack floor alone would not do: one message that is handled again and again holds it down for all behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.pull_consumer import consumer_state
from ratchet.core.contract import Stored
from ratchet.core.errors import ContractError, Unavailable

log = structlog.get_logger()

AWAITED = frozenset({"RL_TRAJECTORIES", "RL_REWARDS", "RL_FEEDBACK"})
"""Streams whose messages services wait for: the collector announces these only."""
COLLECTOR = "trajectory_collector"
LISTEN_S = 0.5
"""The watch waits for the next announcement at most this long, then looks whether it was stopped."""
FLOOR_S = 2.0
"""While a message is awaited, the watch asks the broker this often: an announcement may be lost with its sender."""
REMEMBERED = 100_000
"""Most announced sequences of a stream above the last floor. With more, the oldest half is forgotten: the floor has
passed them, or a reader waits for them a little longer."""
PAUSE_S = 0.5


@dataclass(slots=True)
class _Settled:
    """The settled messages of one stream."""

    generation: str = ""
    floor: int = 0
    beyond: set[int] = field(default_factory=set[int])

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.floor or sequence in self.beyond

    def raise_to(self, floor: int) -> None:
        """Everything up to `floor` is settled."""
        self.floor = max(self.floor, floor)
        self.beyond = {sequence for sequence in self.beyond if sequence > self.floor}


class StoredWatch:
    """Follows the announcements of the collector; run it beside the component that waits."""

    def __init__(self, bus: Bus, streams: Collection[str]) -> None:
        """`streams`: those of `AWAITED` for whose messages the service waits."""
        self._bus = bus
        self._durables = {
            spec.stream: spec.name
            for spec in bus.contracts.consumers.values()
            if spec.service == COLLECTOR and spec.stream in streams
        }
        self._settled: Mapping[str, _Settled] = {stream: _Settled() for stream in self._durables}
        self._changed = asyncio.Condition()
        self._asks_for_floor = False
        """A message is awaited that was not announced: it may be a dead letter, which only the floor shows."""
        self._asked_at = 0.0
        self._stopping = False

    def is_settled(self, stream: str, sequence: int) -> bool:
        """Whether the collector has stored this message, or made it a dead letter."""
        settled = sequence in self._settled[stream]
        self._asks_for_floor = self._asks_for_floor or not settled
        return settled

    async def wait_for(self, stream: str, sequences: Collection[int], deadline_s: float) -> None:
        """Return once all of these messages are settled, or after the deadline."""
        await self._wait(lambda: all(self.is_settled(stream, sequence) for sequence in sequences), deadline_s)

    async def wait_for_any(self, stream: str, sequences: Collection[int], deadline_s: float) -> None:
        """Return once one of these messages is settled, or after the deadline; at once where there are none."""
        await self._wait(
            lambda: not sequences or any(self.is_settled(stream, sequence) for sequence in sequences), deadline_s
        )

    async def _wait(self, until: Callable[[], bool], deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s), self._changed:
                await self._changed.wait_for(until)

    async def run(self) -> None:
        """Follow until stopped; after a broken connection, begin again."""
        while not self._stopping:
            try:
                await self._follow()
            except Unavailable as error:
                log.warning("announcements of stored messages are read again", reason=str(error))
                await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping = True

    async def _follow(self) -> None:
        topic = self._bus.contracts.topics[Stored.TOPIC]
        reader = OrderedReader(self._bus, topic.stream, [f"{Stored.TOPIC}.{stream}" for stream in self._durables])
        await reader.open()
        try:
            for settled in self._settled.values():
                settled.floor, settled.beyond = 0, set()  # the broker may be another one by now
            await self._ask_for_floors()
            while not self._stopping:
                for message in await reader.next(LISTEN_S):
                    try:
                        received, _ = self._bus.read(message)
                    except ContractError:
                        continue
                    if isinstance(received.message, Stored):
                        self._add(received.message)
                await self._wake_waiters()
                if self._asks_for_floor and time.monotonic() - self._asked_at >= FLOOR_S:
                    await self._ask_for_floors()
        finally:
            await reader.close()

    def _add(self, stored: Stored) -> None:
        settled = self._settled[stored.stream]
        if stored.generation != settled.generation:
            if settled.generation:  # the stream was made anew: its sequences began again
                settled.floor, settled.beyond, self._asks_for_floor = 0, set(), True
            settled.generation = stored.generation
        for part in stored.sequences:
            settled.beyond.update(range(max(part.first, part.last - REMEMBERED), part.last + 1))
        if len(settled.beyond) > REMEMBERED:
            settled.beyond = set(sorted(settled.beyond)[-REMEMBERED // 2 :])
            self._asks_for_floor = True

    async def _ask_for_floors(self) -> None:
        for stream, durable in self._durables.items():
            state = await consumer_state(self._bus.nc, stream, durable)
            if state is not None:
                self._settled[stream].raise_to(state.ack_floor.stream_seq)
        self._asks_for_floor, self._asked_at = False, time.monotonic()
        await self._wake_waiters()

    async def _wake_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()


IsStored = Callable[[str, int], Awaitable[bool]]
"""Whether a message of a stream is in the history or a dead letter; false as long as neither is known."""


def stored_check(watch: StoredWatch, outcomes: Callable[[str, Collection[int]], Awaitable[dict[int, str]]]) -> IsStored:
    """Asks the ledger (`History.outcomes`), which knows generations, once the watch calls a message settled."""

    async def is_stored(stream: str, sequence: int) -> bool:
        return watch.is_settled(stream, sequence) and sequence in await outcomes(stream, [sequence])

    return is_stored
