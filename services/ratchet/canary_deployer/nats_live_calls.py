"""The calls of a role as they are recorded: headers first, for a turn may be large; whole turns by their sequence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import reference_of, unseal
from ratchet.bus.ordered_reader import OrderedReader, read_summary
from ratchet.canary_deployer.domain.live_calls import LiveCall
from ratchet.canary_deployer.gates.base import CallsSince, LivePlace
from ratchet.canary_deployer.nats_events import TURNS
from ratchet.core.contract import Turn, decode
from ratchet.core.contract.roles import role_subject
from ratchet.core.contract.turn import TurnSummary
from ratchet.core.errors import BusUnavailable, InvalidMessage, NotFound

PORTION = 5000
"""About as many calls are read at once."""
SIZE = "Nats-Msg-Size"
"""Where a delivery without its body says how large that is."""


@dataclass(frozen=True, slots=True)
class NatsLiveCalls:
    """See `LiveCalls`."""

    bus: Bus

    async def newest(self) -> LivePlace:
        """See `LiveCalls`."""
        extent = await self.bus.extent(TURNS)
        return LivePlace(extent.last, extent.made)

    async def since(self, role: str, place: LivePlace, wait_s: float) -> CallsSince:
        """See `LiveCalls`."""
        extent = await self.bus.extent(TURNS)
        if extent.made != place.made or place.sequence > extent.last:
            return CallsSince([], LivePlace(extent.last, extent.made), made_anew=True)
        start = max(place.sequence + 1, extent.first)
        reader = OrderedReader(self.bus, TURNS, [role_subject(Turn.TOPIC, role)], start=start, headers_only=True)
        calls: list[LiveCall] = []
        try:
            await reader.open()
            batch = await reader.next(wait_s)
            while batch:
                calls += filter(None, map(self._call_of, batch))
                batch = await reader.next(0.0) if reader.count < PORTION else []
            until = reader.newest.metadata.sequence.stream if reader.newest else extent.last
        finally:
            await reader.close()
            await reader.delete()
        return CallsSince(calls, LivePlace(until, extent.made))

    async def turns(self, sequences: Sequence[int]) -> list[Turn]:
        """See `LiveCalls`."""
        turns: list[Turn] = []
        for sequence in sequences:
            stored = await self._stored(sequence)
            if stored is None:
                raise NotFound(f"{TURNS} no longer holds {sequence}")
            headers = dict(stored.headers or {})
            message = Msg(self.bus.nc, stored.subject or "", data=stored.data or b"", headers=headers)
            await self.bus.fetch_body(message)
            try:
                turns.append(decode(unseal(message.headers or {}, message.data), Turn))
            except (InvalidMessage, msgspec.DecodeError) as error:
                raise NotFound(f"{TURNS} holds no call at {sequence} that can be read: {error}") from error
        return turns

    async def erased(self, sequences: Collection[int], made: str) -> set[int]:
        """See `LiveCalls`."""
        extent = await self.bus.extent(TURNS)
        if extent.made != made:
            return set(sequences)
        held = [sequence for sequence in sequences if sequence >= extent.first]
        return {sequence for sequence in held if await self._stored(sequence) is None}

    async def _stored(self, sequence: int) -> RawStreamMsg | None:
        try:
            return await self.bus.nc.jetstream().get_msg(TURNS, sequence)
        except NotFoundError:
            return None
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"{TURNS} does not hand out {sequence}: {error!r}") from error

    def _call_of(self, message: Msg) -> LiveCall | None:
        """What a delivery's headers say; None where they say nothing."""
        summary = read_summary(self.bus, message, TurnSummary)
        if summary is None:
            return None
        elsewhere = reference_of(message.headers)
        return LiveCall(
            sequence=message.metadata.sequence.stream,
            size=elsewhere.size if elsewhere else int((message.headers or {}).get(SIZE, "0")),
            trajectory_id=summary.trajectory_id,
            index=summary.index,
            arm=summary.arm,
            version=summary.version,
            answered=not (summary.failed or summary.cancelled),
        )
