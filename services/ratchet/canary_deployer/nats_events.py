"""What happens to a role's trajectories: starts, turns and rewards, in order from where a rollout has got to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.connection import Bus, Extent
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.pull_consumer import ANSWER_S
from ratchet.bus.received import Received
from ratchet.canary_deployer.domain.trajectories import Batch, Event, call_of, score_of, started_of
from ratchet.canary_deployer.nats_progress import Scored
from ratchet.contract import Alert, Message, Reward, Start, Turn, named_id
from ratchet.contract.roles import role_subject
from ratchet.errors import BusUnavailable, ContractError, RatchetError

log = structlog.get_logger()

STARTS, TURNS, REWARDS = "RL_STARTS", "RL_TURNS", "RL_REWARDS"
PORTION = 2000
"""About as many starts and calls are handed out at once: between two portions the lease is renewed, and a leader says
that it lives, however long nobody has read."""
SKIP_S = 5.0
"""How often places are moved over messages of other roles."""


class Places(msgspec.Struct, frozen=True):
    """A place in each stream: the last message before it."""

    start_seq: int = 0
    turn_seq: int = 0
    reward_seq: int = 0
    streams_made: str = ""
    """When each of the streams was made: another one counts from 1 again. Empty in a record of an older version."""


@dataclass(frozen=True, slots=True)
class Read:
    """Some messages, and the places after them."""

    batch: Batch
    places: Places


class PlacesLost(RatchetError):
    """A stream was made anew, or restored from an older copy: places in it stand for other messages."""


async def newest(bus: Bus) -> Places:
    """The newest message of each stream. Raises `BusUnavailable`."""
    starts, turns, rewards = [await bus.extent(stream) for stream in (STARTS, TURNS, REWARDS)]
    return Places(starts.last, turns.last, rewards.last, _made([starts, turns, rewards]))


def _made(extents: Sequence[Extent]) -> str:
    return " ".join(extent.made for extent in extents)


class Events(Protocol):
    """Starts, turns and rewards of one role from a place on.

    Everything that was stored before a reward of a batch is in that batch or an earlier one: rewards are read first,
    then turns, then starts, each to its end, and handed out the other way round, in portions.
    """

    async def next(self, wait_s: float) -> Read:
        """What has arrived; waits up to `wait_s` for a reward. Raises `Unavailable` when the place is lost."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


@dataclass(frozen=True, slots=True)
class _Look:
    """Rewards that were found, and what has to be handed out before them."""

    scores: list[Event]
    as_of: float
    read_until: float
    turns: int
    """So many messages of the consumer of turns, ..."""
    starts: int
    """... and of starts."""


class NatsEvents:
    """Three ordered consumers, recreated by the caller (from its own places) when a message is missing."""

    def __init__(self, bus: Bus, role: str, places: Places) -> None:
        self._starts = _Tail(bus, STARTS, role_subject(Start.TOPIC, role), places.start_seq)
        self._turns = _Tail(bus, TURNS, role_subject(Turn.TOPIC, role), places.turn_seq)
        self._rewards = _Tail(bus, REWARDS, role_subject(Reward.TOPIC, role), places.reward_seq)
        self._streams_made = places.streams_made
        self._scored = Scored(bus)
        self._look: _Look | None = None
        self._last = Batch((), 0.0)
        """The last look that was handed out whole."""
        self._reward_seq = places.reward_seq
        """The last reward that was handed out."""

    @classmethod
    async def open(cls, bus: Bus, role: str, places: Places) -> NatsEvents:
        """Read on after these places. Raises `PlacesLost`, or `BusUnavailable`.

        What is gone behind a place (a stream was purged, or dropped its oldest) is told, and reading goes on: a call
        that is not seen is no evidence, and an outcome that is not seen is a missing one.
        """
        extents = [await bus.extent(stream) for stream in (STARTS, TURNS, REWARDS)]
        made = _made(extents)
        if places.streams_made not in ("", made):
            raise PlacesLost(f"a stream that the evidence for {role} stands in was made anew")
        after = (places.start_seq, places.turn_seq, places.reward_seq)
        for stream, place, extent in zip((STARTS, TURNS, REWARDS), after, extents, strict=True):
            if place > extent.last:
                raise PlacesLost(f"{stream} ends at {extent.last}, before the evidence for {role}: an older copy")
            if place < extent.first - 1:
                await _tell_gap(bus, role, stream, Gap(place + 1, extent.first - 1))
        events = cls(bus, role, msgspec.structs.replace(places, streams_made=made))
        for tail in (events._starts, events._turns, events._rewards):
            await tail.open()
        return events

    async def next(self, wait_s: float) -> Read:
        """See `Events`."""
        look = self._look = self._look or await self._looked(wait_s)
        events = await self._starts.portion(look.starts, PORTION)
        events += await self._turns.portion(look.turns, PORTION - len(events))
        if self._starts.handed_out < look.starts or self._turns.handed_out < look.turns:
            return Read(Batch(events, self._last.as_of, self._last.read_until), self._places())
        await self._starts.skip_ahead()
        await self._turns.skip_ahead()
        self._look, self._reward_seq = None, self._rewards.applied_seq
        self._last = Batch((), look.as_of, look.read_until)
        return Read(Batch([*events, *look.scores], look.as_of, look.read_until), self._places())

    async def _looked(self, wait_s: float) -> _Look:
        """Some rewards, then how far turns and starts have come since: in this order."""
        told = await self._scored.until()
        scores = await self._rewards.next(wait_s)
        read_until = await self._rewards.read_until()
        turns = await self._turns.end()
        return _Look(scores, min(told, read_until), read_until, turns, await self._starts.end())

    def _places(self) -> Places:
        return Places(self._starts.applied_seq, self._turns.applied_seq, self._reward_seq, self._streams_made)

    async def close(self) -> None:
        """See `Events`."""
        for tail in (self._starts, self._turns, self._rewards):
            await tail.close()


def _event_of(received: Received[Message]) -> Event | None:
    """What the fold sees of a message; the message itself may be large, and is not kept."""
    message, at = received.message, received.time.timestamp()
    if isinstance(message, Start):
        return started_of(message, at)
    if isinstance(message, Turn):
        return call_of(message, at)
    return score_of(message, at) if isinstance(message, Reward) else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that a stream does not hold any more, both ends included."""

    first: int
    last: int


async def _tell_gap(bus: Bus, role: str, stream: str, gap: Gap) -> None:
    """Tell operators, once for each gap: the id is the same however often it is found."""
    log.error("evidence may lack messages", role=role, stream=stream, first=gap.first, last=gap.last)
    summary = (
        f"the rollout of {role} goes on without messages that it never read: {stream} no longer holds {gap.first} to"
        f" {gap.last}, of all roles. Outcomes among them count as missing."
    )
    key = f"rollout-gap:{role}:{stream}"
    await bus.publish(
        Alert(
            alert_id=named_id("alert", key, gap.first, gap.last),
            key=key,
            severity="warning",
            summary=summary,
            source="canary_deployer",
            at=bus.now(),
        )
    )


class _Tail:
    """One subject of one stream from a place on, as the events that the fold sees."""

    def __init__(self, bus: Bus, stream: str, subject: str, applied_seq: int) -> None:
        self._bus = bus
        self._stream = stream
        self._reader = OrderedReader(bus, stream, [subject], start=applied_seq + 1)
        self._looked_at = 0.0
        self.applied_seq = applied_seq

    @property
    def handed_out(self) -> int:
        """Messages, valid or not."""
        return self._reader.count

    async def open(self) -> None:
        await self._reader.open()

    async def next(self, wait_s: float) -> list[Event]:
        """The next events; an invalid one is skipped, every time alike."""
        found: list[Event] = []
        for message in await self._reader.next(wait_s):
            self.applied_seq = message.metadata.sequence.stream
            try:
                event = _event_of(self._bus.read(message)[0])
            except ContractError as error:
                log.warning("message skipped", stream=self._stream, sequence=self.applied_seq, reason=str(error))
            else:
                found += [event] if event is not None else []
        return found

    async def end(self) -> int:
        """How many messages there are for this reader now, those that it has handed out included."""
        return (await self._reader.state()).total

    async def portion(self, goal: int, most: int) -> list[Event]:
        """What comes next until `goal` messages are handed out, and not many more than `most` of them now."""
        found: list[Event] = []
        until = min(goal, self.handed_out + most)
        while self.handed_out < until:
            before = self.handed_out
            found += await self.next(ANSWER_S)
            if self.handed_out == before:
                raise BusUnavailable(f"{self._stream} holds messages that do not come: reading again")
        return found

    async def read_until(self) -> float:
        """An instant by the broker's clock: every message that was stored before it has been handed out."""
        await self.skip_ahead()
        state = await self._reader.state()
        if self._reader.is_at_end(state):
            return state.ts.timestamp()
        newest = self._reader.newest
        return newest.metadata.timestamp.timestamp() if newest else 0.0

    async def skip_ahead(self) -> None:
        """Now and then, move the place over messages of other roles: they may be trimmed, and are no gap then."""
        if time.monotonic() - self._looked_at < SKIP_S:
            return
        self._looked_at = time.monotonic()
        last = (await self._bus.extent(self._stream)).last
        if self._reader.is_at_end(await self._reader.state()):
            self.applied_seq = max(self.applied_seq, last)

    async def close(self) -> None:
        await self._reader.close()
