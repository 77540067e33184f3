"""What the streams hold about a role's trajectories: starts, turns, opinions and rewards, in order from a place on."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from ratchet.bus.connection import Bus, Extent
from ratchet.bus.ordered_reader import PATIENCE_S, OrderedReader, fetch, read_summary, reader_name
from ratchet.bus.pull_consumer import ANSWER_S, ask, consumer_state, unsettled_since
from ratchet.canary_deployer.domain.subjects import RECENT_STARTS
from ratchet.canary_deployer.domain.trajectories import Batch, Event, call_of, opinion_of, score_of, started_of
from ratchet.core.contract import Alert, Feedback, Message, Reward, Start, Turn, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.core.contract.turn import TurnSummary
from ratchet.core.errors import BusUnavailable, ContractError, NotFound, RatchetError

log = structlog.get_logger()

STARTS, TURNS, FEEDBACK, REWARDS = STREAMS = ("RL_STARTS", "RL_TURNS", "RL_FEEDBACK", "RL_REWARDS")
PORTION = 2000
"""About as many starts, calls and opinions are handed out at once: between two portions the controller renews its
leases, however much there is to catch up."""
SKIP_S = 5.0
"""How often places move over messages of other roles."""
RECENT = timedelta(days=1)
"""The starts of this long forecast a role's traffic."""
INACTIVE_S = 5.0
"""The broker forgets the consumer that counts starts after this long."""
ASSEMBLER = "collector-turns"
"""The collector's consumer of RL_TURNS, which has ends of trajectories behind their turns (`contracts/topics.json`)."""
TRAJECTORIES, SCORER = "RL_TRAJECTORIES", "reward-trajectories"
"""What first rewards are computed from, and the reward computer's consumer of it."""
MOST_INSTANTS = 20_000
"""Instants to remember while a consumer is behind: hours of ticks."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A service on the way from the end of a trajectory to its reward has not kept up."""

    service: str
    seconds: float
    """For how long its oldest message has waited."""


class EvidenceLost(RatchetError):
    """The rollout's evidence cannot be continued: its trajectories are gone, or a stream was made anew."""


class Places(msgspec.Struct, frozen=True):
    """A place in each stream: the last message before it."""

    start_seq: int = 0
    turn_seq: int = 0
    feedback_seq: int = 0
    reward_seq: int = 0
    streams_made: str = ""
    """When each of the streams was made: another one counts from 1 again. Empty before the first message."""


@dataclass(frozen=True, slots=True)
class Read:
    """Some events, and the places after them."""

    batch: Batch
    places: Places
    behind: Behind | None = None
    """What makes outcomes late; None when they are not."""


class Events(Protocol):
    """Starts, turns, opinions and rewards of one role from a place on.

    Everything that was stored before a reward of a batch is in that batch or an earlier one: rewards are read first,
    then opinions, turns and starts, each to its end, and handed out the other way round, in portions.
    """

    async def next(self, wait_s: float) -> Read:
        """What has arrived; waits up to `wait_s` for a reward. Raises `Unavailable` when the place is lost."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class EventSource(Protocol):
    """Where starts, turns, opinions and rewards come from."""

    async def newest_places(self) -> Places:
        """The newest message of each stream. Raises `Unavailable`."""
        ...

    async def open(self, role: str, places: Places) -> Events:
        """Read on after these places. Raises `EvidenceLost` or `Unavailable`."""
        ...

    async def recent_starts(self, role: str, now: datetime) -> tuple[int, float]:
        """How many trajectories have started lately, and in how many seconds. Raises `Unavailable`."""
        ...

    async def recent_subjects(self, role: str, now: datetime) -> list[str | None]:
        """The subjects of the latest starts, at most `RECENT_STARTS`; None: its own. Raises `Unavailable`."""
        ...


class NatsEventSource:
    """The broker's streams."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def newest_places(self) -> Places:
        """See `EventSource`."""
        extents = await self._extents()
        return Places(*(extent.last for extent in extents), streams_made=_made(extents))

    async def open(self, role: str, places: Places) -> NatsEvents:
        """See `EventSource`.

        Messages that are gone behind a place (a stream was purged, or dropped its oldest) raise an alert, and reading
        goes on: a call that is not seen is no evidence, and an outcome that is not seen is a missing one.
        """
        extents = await self._extents()
        made = _made(extents)
        if places.streams_made not in ("", made):
            raise EvidenceLost(f"a stream that holds the evidence for {role} was made anew")
        after = (places.start_seq, places.turn_seq, places.feedback_seq, places.reward_seq)
        for stream, place, extent in zip(STREAMS, after, extents, strict=True):
            if place > extent.last:
                raise EvidenceLost(f"{stream} ends at {extent.last}, before the evidence for {role}: an older copy")
            if place < extent.first - 1:
                await _alert_gap(self._bus, role, stream, place + 1, extent.first - 1)
        events = NatsEvents(self._bus, role, msgspec.structs.replace(places, streams_made=made))
        await events.open()
        return events

    async def recent_starts(self, role: str, now: datetime) -> tuple[int, float]:
        """Of the last day, or of the time since the first start that the stream holds. The broker counts them."""
        jetstream, since, subject = self._bus.nc.jetstream(), now - RECENT, role_subject(Start.TOPIC, role)
        config = ConsumerConfig(
            name=reader_name(),
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=since,
            filter_subject=subject,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            counted = await jetstream.add_consumer(STARTS, config)
            if not counted.num_pending:
                return 0, RECENT.total_seconds()
            first = await jetstream.get_msg(STARTS, 1, subject=subject, next=True)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot count the starts of {role}: {error!r}") from error
        began = max(since, first.time) if first.time is not None else since
        return counted.num_pending, max(0.0, (now - began).total_seconds())

    async def recent_subjects(self, role: str, now: datetime) -> list[str | None]:
        """Of the last day, too. As far back as the mean rate asks; four times as far where that was not enough."""
        count, span_s = await self.recent_starts(role, now)
        enough, share = min(count, RECENT_STARTS), min(1.0, RECENT_STARTS / max(count, 1))
        while True:
            subjects = await self._subjects_since(role, now - timedelta(seconds=span_s * share + 1))
            if len(subjects) >= enough or share >= 1:
                return list(subjects)
            share = min(1.0, 4 * share)

    async def _subjects_since(self, role: str, since: datetime) -> deque[str | None]:
        latest = deque[str | None](maxlen=RECENT_STARTS)
        reader = OrderedReader(self._bus, STARTS, [role_subject(Start.TOPIC, role)], start=since)
        async with aclosing(reader.to_end()) as batches:
            async for batch in batches:
                for message in batch:
                    try:
                        start = self._bus.read(message)[0].message
                    except ContractError:
                        continue  # the fold skips it too
                    latest.append(start.subject_ref if isinstance(start, Start) else None)
        return latest

    async def _extents(self) -> list[Extent]:
        return [await self._bus.extent(stream) for stream in STREAMS]


def _made(extents: Sequence[Extent]) -> str:
    return " ".join(extent.made for extent in extents)


async def _alert_gap(bus: Bus, role: str, stream: str, first: int, last: int) -> None:
    """Alert operators, once for each gap: however often it is noticed, the id is the same."""
    log.error("evidence may lack messages", role=role, stream=stream, first=first, last=last)
    summary = (
        f"the rollout of {role} goes on without messages that it never read: {stream} no longer holds {first} to"
        f" {last}, of all roles. Outcomes among them count as missing."
    )
    key = f"rollout-gap:{role}:{stream}"
    await bus.publish(
        Alert(
            alert_id=named_id("alert", key, first, last),
            key=key,
            severity="warning",
            summary=summary,
            source="canary_deployer",
            at=bus.now(),
        )
    )


async def started_roles(bus: Bus) -> dict[str, int]:
    """How many trajectories have started in each role, of those that the stream holds. Raises `BusUnavailable`."""
    try:
        info = await bus.nc.jetstream().stream_info(STARTS, subjects_filter=">")
    except (nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise BusUnavailable(f"cannot count the starts of roles: {error!r}") from error
    named = {
        subject.removeprefix(Start.TOPIC).lstrip("."): count for subject, count in (info.state.subjects or {}).items()
    }
    return {role or DEFAULT_ROLE: count for role, count in named.items()}


@dataclass(frozen=True, slots=True)
class _Round:
    """Rewards that have arrived, and everything to hand out before them."""

    scores: list[Event]
    as_of: float
    read_until: float
    behind: Behind | None
    turns: int
    """So many messages of the consumer of turns, ..."""
    feedback: int
    """... of feedback, ..."""
    starts: int
    """... and of starts."""


class NatsEvents:
    """Four ordered consumers, recreated by the caller (from its own places) when a message is missing."""

    def __init__(self, bus: Bus, role: str, places: Places) -> None:
        self._starts = _Tail(bus, STARTS, role_subject(Start.TOPIC, role), places.start_seq)
        self._turns = _Tail(bus, TURNS, role_subject(Turn.TOPIC, role), places.turn_seq, headers_only=True)
        self._feedback = _Tail(bus, FEEDBACK, role_subject(Feedback.TOPIC, role), places.feedback_seq)
        self._rewards = _Tail(bus, REWARDS, role_subject(Reward.TOPIC, role), places.reward_seq)
        self._streams_made = places.streams_made
        self._scoring = _Scoring(bus)
        self._round: _Round | None = None
        self._last = Read(Batch((), 0.0), places)
        """The last round that was handed out whole, without its events."""
        self._reward_seq = places.reward_seq
        """The last reward that was handed out."""

    async def open(self) -> None:
        """Begin to read. Raises `BusUnavailable`."""
        for tail in (*self._before, self._rewards):
            await tail.reader.open()

    async def next(self, wait_s: float) -> Read:
        """See `Events`."""
        current = self._round = self._round or await self._next_round(wait_s)
        events, goals = list[Event](), (current.starts, current.turns, current.feedback)
        for tail, goal in zip(self._before, goals, strict=True):
            events += await tail.portion(goal, PORTION - len(events))
        if any(tail.reader.count < goal for tail, goal in zip(self._before, goals, strict=True)):
            before = self._last.batch
            return Read(Batch(events, before.as_of, before.read_until), self._places(), self._last.behind)
        for tail in self._before:
            await tail.skip_ahead()
        self._round, self._reward_seq = None, self._rewards.applied_seq
        self._last = Read(Batch((), current.as_of, current.read_until), self._places(), current.behind)
        return replace(self._last, batch=replace(self._last.batch, events=[*events, *current.scores]))

    async def close(self) -> None:
        """See `Events`."""
        for tail in (*self._before, self._rewards):
            await tail.reader.close()

    @property
    def _before(self) -> tuple[_Tail, ...]:
        """What is handed out before rewards, in this order."""
        return self._starts, self._turns, self._feedback

    async def _next_round(self, wait_s: float) -> _Round:
        """Some rewards, then how many opinions, turns and starts have come since: in this order."""
        scored_until, behind = await self._scoring.scored_until()
        scores = await self._rewards.next(wait_s)
        read_until = await self._rewards.read_until()
        feedback = (await self._feedback.reader.state()).total
        turns = (await self._turns.reader.state()).total
        starts = (await self._starts.reader.state()).total
        return _Round(scores, min(scored_until, read_until), read_until, behind, turns, feedback, starts)

    def _places(self) -> Places:
        before = (tail.applied_seq for tail in self._before)
        return Places(*before, reward_seq=self._reward_seq, streams_made=self._streams_made)


class _Tail:
    """One subject of one stream from a place on, as the events that the fold sees."""

    def __init__(self, bus: Bus, stream: str, subject: str, applied_seq: int, *, headers_only: bool = False) -> None:
        """`headers_only`: of turns, which may be large, the summary does; one that has none is fetched."""
        self._bus = bus
        self._stream = stream
        self._headers_only = headers_only
        self._skipped_at = 0.0
        self._waiting_since: tuple[int, float] | None = None
        """After how many messages the broker had more, and since when; None when it had none."""
        self.reader = OrderedReader(bus, stream, [subject], start=applied_seq + 1, headers_only=headers_only)
        """Its `count` are the messages that were handed out, valid or not."""
        self.applied_seq = applied_seq

    async def next(self, wait_s: float) -> list[Event]:
        """The next events. An invalid message is skipped, every time alike."""
        events: list[Event] = []
        for message in await self.reader.next(wait_s):
            self.applied_seq = message.metadata.sequence.stream
            try:
                event = await self._event_of(message)
            except (ContractError, NotFound) as error:
                log.warning("message skipped", stream=self._stream, sequence=self.applied_seq, reason=str(error))
            else:
                events += [event] if event is not None else []
        return events

    async def _event_of(self, message: Msg) -> Event | None:
        """What the fold sees of a delivery. Raises `ContractError`, `NotFound` or `BusUnavailable`."""
        stored_at = message.metadata.timestamp.timestamp()
        if self._headers_only:
            summary = read_summary(self._bus, message, TurnSummary)
            if summary is not None:
                return call_of(summary, stored_at)
            message = await fetch(self._bus, message)
        return _event_of(self._bus.read(message)[0].message, stored_at)

    async def portion(self, goal: int, most: int) -> list[Event]:
        """What comes next until `goal` messages are handed out, and not many more than `most` of them now."""
        events: list[Event] = []
        until = min(goal, self.reader.count + most)
        while self.reader.count < until:
            before = self.reader.count
            events += await self.next(ANSWER_S)
            if self.reader.count == before:
                raise BusUnavailable(f"{self._stream} holds messages that do not come: reading again")
        return events

    async def read_until(self) -> float:
        """An instant by the broker's clock: every message that was stored before it has been handed out.

        Raises `BusUnavailable` when the broker has more for too long and nothing comes: the caller reads again.
        """
        await self.skip_ahead()
        state = await self.reader.state()
        if self.reader.is_at_end(state):
            self._waiting_since = None
            return state.ts.timestamp()
        if self._waiting_since is None or self._waiting_since[0] != self.reader.count:
            self._waiting_since = (self.reader.count, time.monotonic())
        if time.monotonic() - self._waiting_since[1] > PATIENCE_S:
            raise BusUnavailable(f"{self._stream} holds messages that do not come: reading again")
        newest = self.reader.newest
        return newest.metadata.timestamp.timestamp() if newest else 0.0

    async def skip_ahead(self) -> None:
        """Now and then, move the place over messages of other roles: they may be trimmed, and are no gap then."""
        if time.monotonic() - self._skipped_at < SKIP_S:
            return
        self._skipped_at = time.monotonic()
        last = (await self._bus.extent(self._stream)).last
        if self.reader.is_at_end(await self.reader.state()):
            self.applied_seq = max(self.applied_seq, last)


def _event_of(message: Message, at: float) -> Event | None:
    """What the fold sees of a message; the message itself may be large, and is not kept."""
    if isinstance(message, Start):
        return started_of(message, at)
    if isinstance(message, Turn):
        return call_of(message.header_summary, at)
    if isinstance(message, Feedback):
        return opinion_of(message, at)
    return score_of(message, at) if isinstance(message, Reward) else None


class _StreamState(msgspec.Struct):
    last_seq: int


class _StreamInfo(msgspec.Struct):
    ts: datetime
    state: _StreamState


class _Scoring:
    """Until when every report has its first reward, and which service is behind.

    The end of a trajectory becomes a trajectory (collector), and that a reward (reward computer). Each acknowledges
    what it has read when its answer is stored.
    """

    def __init__(self, bus: Bus) -> None:
        self._assembled = _Settled(bus, TURNS, ASSEMBLER)
        self._scored = _Settled(bus, TRAJECTORIES, SCORER)

    async def scored_until(self) -> tuple[float, Behind | None]:
        """An instant by the broker's clock; infinite where no reward computer of Ratchet's reads trajectories."""
        assembled = await self._assembled.until()
        scored = await self._scored.until(assembled)
        waits = [("trajectory_collector", self._assembled.behind_s), ("reward_computer", self._scored.behind_s)]
        service, seconds = max(waits, key=lambda wait: wait[1])
        return scored, Behind(service, seconds) if seconds > 0 else None


class _Settled:
    """Until when a consumer has settled everything that its stream holds.

    `_seen` are instants, each with the stream's last message of then: the newest instant up to which all is
    acknowledged is the answer.
    """

    def __init__(self, bus: Bus, stream: str, consumer: str) -> None:
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._seen: deque[tuple[float, float, int]] = deque(maxlen=MOST_INSTANTS)
        """When, until when the stream held every report then, and its last message."""
        self._until = -math.inf
        self._settled_at: float | None = None
        self.behind_s = 0.0
        """For how long the oldest message that is not settled has waited, to a tick."""

    async def until(self, complete: float = math.inf) -> float:
        """An instant by the broker's clock; infinite where there is no such consumer.

        `complete`: an instant up to which the stream holds every report now.
        """
        state = await consumer_state(self._bus.nc, self._stream, self._consumer)
        if state is None:
            self._seen.clear()
            self._settled_at, self.behind_s = None, 0.0  # one that is gone is not behind
            return complete
        oldest = await unsettled_since(self._bus.nc, self._stream, state)
        if oldest is None and state.num_pending + state.num_ack_pending == 0:
            self._seen.clear()
            self._settled_at, self.behind_s = state.ts.timestamp(), 0.0
            self._until = min(self._settled_at, complete)
            return self._until
        while self._seen and self._seen[0][2] <= state.settled:
            self._settled_at, self._until, _ = self._seen.popleft()
        info = await ask(self._bus.nc, f"STREAM.INFO.{self._stream}", _StreamInfo)
        now = info.ts.timestamp()
        if not self._seen or self._seen[-1][2] != info.state.last_seq:
            self._seen.append((now, min(now, complete), info.state.last_seq))
        if self._settled_at is None:
            self._settled_at = now if oldest is None else oldest.timestamp()
        self.behind_s = max(0.0, now - self._settled_at)
        return self._until
