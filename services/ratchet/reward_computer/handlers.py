"""Trajectory -> first reward; opinions, judgements and late facts (kind `update`) -> next revision.

Both may come in any order, twice, and to several workers at once; no opinion is lost, without locks and without
parking. Two rules make it so: a handler does nothing before ClickHouse holds its own message, and reads what the other
kind left there only after that. Of a trajectory and an opinion, the one that is stored later is handled by a reader
that sees the earlier one: the trajectory's first reward takes the opinion in, or the opinion's handler finds the
trajectory and revises. (Of two opinions, the later sees both; see `domain.reward.revision_of`.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import compress

from ratchet.bus.consumer import Dead, Done, Later, Outcome, Retry
from ratchet.bus.envelope import source_of
from ratchet.bus.projection import Projection
from ratchet.bus.received import Received
from ratchet.bus.tasks import with_pauses
from ratchet.core.contract import Feedback, Reward, Trajectory
from ratchet.core.contract.reward import UPDATE
from ratchet.core.errors import Unavailable
from ratchet.core.stores.stored_watch import COLLECTOR, StoredWatch
from ratchet.reward_computer import metrics
from ratchet.reward_computer.clickhouse_facts import Event, Facts, Key
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.domain.history import TurnHistory, history_key
from ratchet.reward_computer.domain.normalization import NO_PAST, NOTHING_YET, ScoreWindows, Stats, windows_key
from ratchet.reward_computer.domain.reward import (
    FURTHER,
    Circumstances,
    RewardSpec,
    has_equal_scores,
    has_new_opinions,
    newest,
    recorded_history,
    revision_of,
    reward_of,
    scored_in,
)
from ratchet.reward_computer.kv_functions import InForce

WAIT_S = 1.0
"""Longest wait of a batch for the collector, which is usually faster; later, messages are delivered again."""
MOMENT = timedelta(milliseconds=1)
"""A revision is so much later than the one before it, if not by its clock: what it is shared as counts by its time."""
STORED = "stored"
"""The ledger's outcome of a message that must have a row."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The function in force, and what ClickHouse holds about the trajectories of a batch."""

    spec: RewardSpec
    trajectories: Mapping[Key, Sequence[Trajectory]]
    rewards: Mapping[Key, Sequence[Reward]]
    opinions: Mapping[Key, Sequence[Feedback]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """What became of the messages of a batch."""

    events: Collection[Event]
    """Those with a row."""
    absent: Collection[int]
    """The sequences of those that the collector has settled and that have none."""
    outcomes: Mapping[int, str]
    """What the ledger says of these."""


@dataclass(frozen=True)
class RewardComputer:
    """The handlers."""

    functions: InForce
    facts: Facts
    settled: StoredWatch
    """What the collector has stored."""
    histories: Projection[TurnHistory]
    windows: Projection[ScoreWindows]
    newest_reward: Callable[[], Awaitable[int]]
    """Sequence in RL_REWARDS that the windows must have reached once before a reward is normalised with them."""
    now: Callable[[], datetime]
    patience: timedelta
    """How long feedback waits for the first reward of a trajectory that is stored, and a message that is settled for
    its row."""
    _absent_since: dict[tuple[str, int], datetime] = field(default_factory=dict[tuple[str, int], datetime], init=False)
    """By stream and sequence of a message that was settled and has no row: when that was seen first."""
    _windows_read: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def first_rewards(self, batch: Sequence[Received[Trajectory]]) -> Sequence[Outcome]:
        """Reward each trajectory that is stored and has no first reward yet; no other one holds it up."""
        await self.histories.wait_for(max(received.sequence for received in batch))
        await self._read_windows()
        fresh = [received for received in batch if received.delivered == 1]
        await self.settled.wait_for_any(batch[0].stream, {received.sequence for received in fresh}, WAIT_S)
        coming = self._coming(fresh)
        are_ready = [received.sequence not in coming for received in batch]
        ready = list(compress(batch, are_ready))
        stored = await self._stored("trajectories", ready)
        keys = {_key(received.message) for received in ready}
        known = _Known(await self.functions.in_force(), {}, *await self.facts.assessments(keys))
        rewarded = [self._first_reward(received, stored, known) async for received in with_pauses(ready)]
        outcomes = iter(_each_event_once(rewarded))
        return [next(outcomes) if is_ready else Later() for is_ready in are_ready]

    async def revisions(self, batch: Sequence[Received[Feedback]]) -> Sequence[Outcome]:
        """Revise the reward of each trajectory that new feedback is about."""
        await self._read_windows()
        await self.settled.wait_for(
            batch[0].stream, {received.sequence for received in batch if received.delivered == 1}, WAIT_S
        )
        stored = await self._stored("feedback", batch)
        keys = {_key(received.message) for received in batch}
        spec, trajectories = await self.functions.in_force(), await self.facts.trajectories(keys)
        known = _Known(spec, trajectories, *await self.facts.assessments(keys))
        updated = {_key(received.message) for received in batch if received.message.kind == UPDATE}
        places = await self.facts.places(updated) if updated else {}
        return _each_event_once(
            [self._revision(received, stored, known, places) async for received in with_pauses(batch)]
        )

    def _coming(self, fresh: Sequence[Received[Trajectory]]) -> set[int]:
        """The sequences of those that the collector settles soon: it settles others of the batch, and these come after
        them, or came less than `WAIT_S` ago: two collectors take batches in turn."""
        settled = {one.sequence for one in fresh if self.settled.is_settled(one.stream, one.sequence)}
        if not settled:
            return set()
        since, reached = self.now() - timedelta(seconds=WAIT_S), max(settled)
        rest = [one for one in fresh if one.sequence not in settled]
        return {one.sequence for one in rest if one.sequence > reached or one.time > since}

    async def _read_windows(self) -> None:
        """Wait until the windows hold the past, at the start: a stream that is made anew counts from 1 again."""
        if not self._windows_read.is_set():
            await self.windows.wait_for(await self.newest_reward())
            self._windows_read.set()

    async def _stored(self, table: str, batch: Sequence[Received[Trajectory | Feedback]]) -> _Stored:
        """What of the batch is stored. ClickHouse is asked only about messages that the collector has settled."""
        stream = batch[0].stream
        settled = [received for received in batch if self.settled.is_settled(stream, received.sequence)]
        try:
            events = await self.facts.stored(table, {_event(received) for received in settled}) if settled else set()
            absent = [received.sequence for received in settled if _event(received) not in events]
            outcomes = await self.facts.outcomes(stream, absent) if absent else {}
        except Unavailable:
            self._absent_since.clear()  # waiting for ClickHouse is no fault of a message
            raise
        for received in batch:
            if received.sequence not in absent:
                self._absent_since.pop((stream, received.sequence), None)
        return _Stored(events, frozenset(absent), outcomes)

    def _not_stored(self, received: Received[Trajectory | Feedback], stored: _Stored) -> Outcome:
        """Wait for what the collector has not settled; what it settled otherwise than by a row never gets one."""
        waits = Retry(f"message {received.sequence} is not stored yet", delay_s=min(10.0, 0.2 * received.delivered))
        if received.sequence not in stored.absent:
            return waits
        now, place = self.now(), (received.stream, received.sequence)
        if stored.outcomes.get(received.sequence, STORED) != STORED:  # a dead letter, a duplicate, or counted as gone
            self._absent_since.pop(place, None)
            return Done()
        if now - self._absent_since.setdefault(place, now) <= self.patience:
            return waits
        del self._absent_since[place]
        return Dead("rejected", f"the collector has settled it, and it has not been in ClickHouse for {self.patience}")

    def _first_reward(self, received: Received[Trajectory], stored: _Stored, known: _Known) -> Outcome:
        trajectory, key, spec = received.message, _key(received.message), known.spec
        if _event(received) not in stored.events:
            return self._not_stored(received, stored)
        own = (reward for reward in known.rewards.get(key, ()) if reward.reward_function == spec.function)
        if any(reward.revision == 0 for reward in own):
            return Done()
        past = self._history(trajectory, received.sequence, spec.window)
        evidence = Evidence(trajectory, known.opinions.get(key, ()), past)
        when = Circumstances(self.now(), 0, self._windows(trajectory, spec), reported_at=_reported_at(received))
        reward = reward_of(spec, evidence, when)
        metrics.REWARD.observe(reward.total_reward)
        return Done([reward])

    def _revision(
        self, received: Received[Feedback], stored: _Stored, known: _Known, places: Mapping[Key, int]
    ) -> Outcome:
        key, spec, is_opinion = _key(received.message), known.spec, received.message.score is not None
        if not is_opinion and received.message.kind not in FURTHER:
            return Done()
        if _event(received) not in stored.events:
            return self._not_stored(received, stored)
        if not known.trajectories.get(key):
            return Done()
        last = newest(known.rewards.get(key, ()), spec.function)
        if last is None:
            return self._await_first_reward(received)
        opinions, trajectory = known.opinions.get(key, ()), known.trajectories[key][0]
        history = recorded_history(last) or self._history(trajectory, places.get(key), spec.window)
        scored = scored_in(known.rewards[key], spec.function)
        at = max(self.now(), last.timestamp + MOMENT)
        when = Circumstances(at, revision_of(opinions), self._windows(trajectory, spec), last, scored=scored)
        revised = reward_of(spec, Evidence(trajectory, opinions, history), when)
        equal = not has_new_opinions(spec, opinions, last) if is_opinion else has_equal_scores(revised, last)
        if equal:
            return Done()
        metrics.REVISIONS.inc()
        return Done([revised])

    def _history(self, trajectory: Trajectory, sequence: int | None, window: int) -> Stats:
        """The past of a trajectory, as of its place in the stream."""
        history = self.histories.state(history_key(trajectory))
        if history is None or sequence is None:
            return NOTHING_YET
        return history.before(trajectory, sequence, window)

    def _windows(self, trajectory: Trajectory, spec: RewardSpec) -> ScoreWindows:
        return self.windows.state(windows_key(trajectory.role, spec.function)) or NO_PAST

    def _await_first_reward(self, received: Received[Feedback]) -> Outcome:
        trajectory_id = received.message.trajectory_id
        if self.now() - received.time > self.patience:
            return Dead("rejected", f"trajectory {trajectory_id} is stored, but was not rewarded in {self.patience}")
        return Retry(f"trajectory {trajectory_id} is not rewarded yet", delay_s=min(10.0, 0.2 * received.delivered))


def _key(message: Trajectory | Feedback) -> Key:
    return message.role, message.trajectory_id


def _event(received: Received[Trajectory | Feedback]) -> Event:
    return (*_key(received.message), received.event_id)


def _reported_at(received: Received[Trajectory]) -> datetime:
    """When a stream stored the report: of what the collector assembled the instant of the end, which it alone knows."""
    is_assembled = received.headers.get("ce-source") == source_of(COLLECTOR)
    return (received.message.metadata.reported_at if is_assembled else None) or received.time


def _each_event_once(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """A batch may lead to the same reward twice: two opinions on one trajectory."""
    seen: set[str] = set()
    unique: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, Done):
            fresh = [event for event in outcome.events if event.event_id not in seen]
            seen |= {event.event_id for event in fresh}
            outcome = Done(fresh)  # noqa: PLW2901 - the outcome without what the batch already publishes
        unique.append(outcome)
    return unique
