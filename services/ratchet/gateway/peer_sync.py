"""Sends the other gateways what this process answered, and learns from their notes what they did.

So any process, on any host, answers any call: which trajectory it belongs to, its number, its policy, and its end are
known to all. Notes go out as calls end, unconfirmed; where a call's trajectory depends on what may still be on its way
(`Recognised.is_certain`), one round trip to the broker brings it. Where that fails, a conversation that is known by its
beginning alone begins a new trajectory: another gateway may have answered the same. Notes that the broker may not have
got are sent again. The stream of the notes, in the broker's memory, is read at a start and after a lost connection; a
process that has met no broker knows its own calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.listener import Listener
from ratchet.bus.message import decode
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.pull_consumer import ask
from ratchet.bus.tasks import UntilStopped, end
from ratchet.core.contract import GatewayNotes
from ratchet.core.contract.gateway_notes import UseNote
from ratchet.core.errors import BusUnavailable
from ratchet.gateway import metrics
from ratchet.gateway.domain.identity import Asked, Identity, Recognised
from ratchet.gateway.domain.past_calls import CallsElsewhere
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.turn_order import TurnOrder

log = structlog.get_logger()

STREAM = "RL_GATEWAYS"
ROUND_TRIP_S = 1.0
"""Longest wait of a call for what other gateways know of it, which takes about a millisecond; none waits once the
broker has not answered for `CONFIRM_S`."""
TOGETHER_S = 0.02
"""So long the note of a record waits for others: of the next records, or of the agent's next answer."""
UNCONFIRMED = 10_000
"""Messages of notes that are kept until the broker has answered after them: 12 MiB where each is of one answer."""
CONFIRM_S = 3.0
"""Longest time that the broker may take to answer, and count as there."""
SETTLE_S = 10.0
"""After a broker that was away, the other gateways have so long to come back to it and to send again what they answered
meanwhile; until then this process does not count on knowing it."""
TICK_S, HEARTBEAT_S = 1.0, 20.0
"""How often this process looks whether its connection broke, and says that it is alive."""
ALIVE_S = 3 * HEARTBEAT_S
"""A process that has sent nothing for longer is gone: no call waits for its notes."""
HISTORY_S = 60.0
"""Longest time that reading the stream may take; what is left then stays unknown."""
MARGIN_S = 10.0
"""After a lost connection the stream is read from so long before it was last seen to work."""
CHUNK = 32
"""PeerUpdates of the stream that are taken over before calls have their turn."""


class _Info(msgspec.Struct, frozen=True):
    ts: datetime
    """When, by the clock that stamps messages."""


@dataclass(frozen=True)
class Memory:
    """What this process remembers of calls and keys: what other processes send becomes part of it."""

    identity: Identity
    arms: Arms
    calls: CallsElsewhere
    order: TurnOrder
    learn_use: Sequence[Callable[[UseNote], None]]
    """Each counts what a key used elsewhere just now."""

    def learn(self, notes: GatewayNotes, sent_s: float, *, live: bool) -> None:
        """Take notes over that were sent at a time of this process's clock; `live`: just now, and once."""
        for answer in notes.answers:
            self.identity.learn_answer(answer, sent_s)
        for failure in notes.failures:
            self.identity.learn_failure(failure, sent_s)
        for repetition in notes.repetitions:
            self.identity.learn_repetition(repetition)
        for trajectory_id in notes.ends:
            self.identity.learn_end(trajectory_id)
        for note in notes.arms:
            self.arms.learn(notes.process, note)
        for call in notes.calls:
            self.calls.learn(call)
            arm = self.arms.learn_recorded(notes.process, call.trajectory_id, call.role, call.number)
            if arm is not None:
                self.order.look(arm)
        for use in notes.uses if live else ():
            for learn in self.learn_use:
                learn(use)


class PeerSync:
    """A component: while it runs, notes are sent and taken over."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Bus]],
        updates: PeerUpdates,
        memory: Memory,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is Unix time, as the memory has it."""
        self._connect = connect
        self._updates = updates
        self._memory = memory
        self._now_s = now_s
        self._bus: Bus | None = None
        self._listener: Listener | None = None
        self._waiting: asyncio.Future[bool] | None = None
        self._travelling: asyncio.Task[None] | None = None
        self._alive_until_s: dict[str, float] = {}
        """Until when each other process counts as alive."""
        self._well_s = 0.0
        """When a round trip last succeeded; 0 before the stream was read."""
        self._is_well = False
        """The last round trip succeeded, and nothing that was sent before it is unknown here."""
        self._has_read = False
        self._unconfirmed: deque[tuple[int, GatewayNotes]] = deque()
        """With their numbers, which count all messages."""
        self._sent = 0
        self._breaks = -1
        self._working = UntilStopped()

    @property
    def has_others(self) -> bool:
        """Whether another process has sent something lately, or had when the connection was last seen to work."""
        since_s = self._now_s() if self._is_well else self._well_s
        return any(until_s > since_s for until_s in self._alive_until_s.values())

    async def ready(self) -> str | None:
        """Readiness: why runs that other gateways began would be cut, None when they would not."""
        is_reading = self._bus is not None and self._bus.is_connected and not self._has_read
        return "reads what other gateways answered" if is_reading else None

    async def recognise(self, asked: Asked) -> Recognised:
        """The trajectory of a call that begins: by what all gateways have answered. Raises `BadRequest`."""
        identity = self._memory.identity
        call = identity.look_up(asked)
        if not call.is_certain:
            knows_all = await self.catch_up()
            call = identity.look_up(asked)
            if not knows_all:
                call = identity.confirmed(call)
        identity.begin(asked, call)
        return call

    async def catch_up(self) -> bool:
        """Wait, within `ROUND_TRIP_S`, for what other processes have sent before now; False when it may not be here."""
        if self._bus is None or (self._has_read and not self.has_others):
            return True
        is_whole = self._listener is not None and self._listener.breaks == self._breaks
        return is_whole and self._is_well and self._bus.is_connected and await self._round_trip(ROUND_TRIP_S)

    async def run(self) -> None:
        """Send and listen until stopped."""
        try:
            await self._working.run(self._work())
        finally:
            await end(self._travelling)

    async def stop(self) -> None:
        """Return from `run`; no record waits for other processes any more, and the notes of no record for another."""
        self._updates.listen(self._send, self._soon, self._soon)
        self._memory.order.finish()
        self._working.stop()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        self._updates.listen(self._send, self._soon, self._later)
        bus = await self._connect()
        self._listener = listener = Listener(bus.nc, GatewayNotes.TOPIC, self.take)
        await listener.open()
        self._bus = bus
        heartbeat_due_s, patient_until_s, failed_s = 0.0, loop.time() + HISTORY_S, -SETTLE_S
        while True:
            if bus.is_connected and listener.breaks != self._breaks:
                if self._breaks >= 0:
                    failed_s = loop.time()  # others send again what they could not
                self._is_well, seen = False, listener.breaks
                self._send_again(bus)  # to those who listen; and once more when the stream is there
                if await self._read_stream(bus) or loop.time() > patient_until_s:
                    self._breaks, self._has_read = seen, True
                    self._send_again(bus)
            if loop.time() >= heartbeat_due_s and bus.send_unconfirmed(self._updates.heartbeat()):
                heartbeat_due_s = loop.time() + HEARTBEAT_S
            if not (bus.is_connected and listener.breaks == self._breaks and await self._confirm()):
                self._is_well, failed_s = False, loop.time()
            elif loop.time() - failed_s >= SETTLE_S:
                self._is_well, self._well_s = True, self._now_s()
            # Tell the limits of keys how many gateways share them. Those that are gone for good are forgotten.
            now_s = self._now_s()
            self._updates.gateways = 1 + sum(until_s > now_s for until_s in self._alive_until_s.values())
            gone_s = self._well_s - ALIVE_S
            self._alive_until_s = {process: at_s for process, at_s in self._alive_until_s.items() if at_s > gone_s}
            await asyncio.sleep(TICK_S)

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._send)

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(TOGETHER_S, self._send)

    def _send(self) -> None:
        notes = self._updates.take()
        if notes is None:
            return
        self._sent += 1
        self._unconfirmed.append((self._sent, notes))
        if len(self._unconfirmed) > UNCONFIRMED:
            self._unconfirmed.popleft()
            metrics.UNSENT_NOTES.inc()
        if self._bus is not None:
            self._bus.send_unconfirmed(notes)

    def _send_again(self, bus: Bus) -> None:
        """What may not have come through the connection that broke; what keys used counts once, and is left out."""
        for _, notes in self._unconfirmed:
            bus.send_unconfirmed(msgspec.structs.replace(notes, uses=[]))

    async def _confirm(self) -> bool:
        """Whether the broker answers; then it has all notes that were sent before."""
        last = self._sent
        if not await self._round_trip(CONFIRM_S):
            return False
        while self._unconfirmed and self._unconfirmed[0][0] <= last:
            self._unconfirmed.popleft()
        return True

    async def _round_trip(self, within_s: float) -> bool:
        """One that begins after now: a note that was sent before it arrives with it. False when the broker is away or
        slower."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
            if self._travelling is None or self._travelling.done():
                self._travelling = asyncio.create_task(self._travel())
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._waiting)
        except TimeoutError:
            return False

    async def _travel(self) -> None:
        """One round trip after the other, each for all calls that came before it."""
        while self._waiting is not None and self._listener is not None:
            waiting, self._waiting = self._waiting, None
            try:
                await self._listener.round_trip()
            except BusUnavailable:
                waiting.set_result(False)
            else:
                waiting.set_result(True)

    async def _read_stream(self, bus: Bus) -> bool:
        """Take over what was sent before this process listened, or while its connection was away."""
        try:
            async with asyncio.timeout(HISTORY_S):
                behind_s = self._now_s() - (await ask(bus.nc, f"STREAM.INFO.{STREAM}", _Info)).ts.timestamp()
                start = datetime.fromtimestamp(self._well_s - behind_s - MARGIN_S, UTC) if self._well_s else 1
                await self._read(OrderedReader(bus, STREAM, start=start), behind_s)
        except BusUnavailable as error:
            log.debug("notes of other gateways not read yet", reason=str(error))  # what makes streams makes it again
            return False
        except TimeoutError:
            log.warning("notes of other gateways not read to the end", stream=STREAM, after_s=HISTORY_S)
        return True

    async def _read(self, reader: OrderedReader, behind_s: float) -> None:
        """`behind_s`: how far the broker's clock is behind this process's."""
        async with aclosing(reader.to_end()) as batches:
            async for batch in batches:
                for number, message in enumerate(batch, 1):
                    sent_s = message.metadata.timestamp.timestamp() + behind_s
                    self.take(message.data, min(self._now_s(), sent_s))
                    if number % CHUNK == 0:
                        await asyncio.sleep(0)

    def take(self, body: bytes, sent_s: float | None = None) -> None:
        """Take the notes of a message over, which came just now, or was sent at a time of this process's clock.

        Unreadable ones mean nothing, and what a later version adds is left out.
        """
        try:
            notes = decode(body, GatewayNotes)
        except msgspec.DecodeError:
            metrics.UNREADABLE_NOTES.inc()
            return
        if notes.process != self._updates.process:
            at_s = self._now_s() if sent_s is None else sent_s
            until_s = max(self._alive_until_s.get(notes.process, 0.0), at_s + ALIVE_S)
            self._alive_until_s[notes.process] = until_s
            self._memory.learn(notes, at_s, live=sent_s is None)
