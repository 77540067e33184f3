"""One handler per topic: facts become rows, the end of a trajectory becomes a trajectory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from ratchet.bus.consumer import BatchHandler, Dead, Done, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.contract import Message, Stored, Trajectory, TrajectoryEnd
from ratchet.contract.operations import SequenceRange
from ratchet.errors import Unavailable
from ratchet.rules.chat import ChatError
from ratchet.stores.stored_watch import AWAITED
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts, Place
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.domain import assemble, is_complete, is_fuller, told_of, update_of
from ratchet.trajectory_collector.incarnations import Incarnations
from ratchet.trajectory_collector.ledger import DEAD, DUPLICATE, STORED, Account, Entry
from ratchet.trajectory_collector.rows import TABLES, Table, row_of

log = structlog.get_logger()

Batch = Sequence[Received[Any]]
"""`Any` because one subscription carries several message types."""


@dataclass(frozen=True)
class Collector:
    """The handlers of one stream; `consumer` is the name its ledger entries carry."""

    facts: Facts
    ledger: Ledger
    incarnations: Incarnations
    consumer: str
    now: Callable[[], datetime]
    patience: timedelta
    """How long the end of a trajectory waits for its turns, from the first look that found the warehouse there."""
    publish: Callable[[Message], Awaitable[None]]
    """`Bus.publish`, for announcements."""
    _first_looks: dict[int, datetime] = field(default_factory=dict[int, datetime])
    """By sequence of an end that waits: when the warehouse first answered that turns are not there yet."""

    def handler(self, topic: str) -> BatchHandler:
        """What handles the messages of a topic."""
        return self.end if topic == TrajectoryEnd.TOPIC else partial(self.store, TABLES[topic])

    async def store(self, table: Table, batch: Batch, *, again: bool = False) -> Sequence[Outcome]:
        """Insert what is new, account for everything, count what is new.

        `again`: the batch was settled before, and its rows or entries are gone.
        """
        try:
            return await self._store(table, batch, again)
        except Unavailable:
            self._first_looks.clear()  # turns wait for the warehouse now, not for their agent
            raise

    async def _store(self, table: Table, batch: Batch, again: bool) -> Sequence[Outcome]:
        incarnation = await self.incarnations.of(self.consumer, batch)
        places = {received.event_id: Place(incarnation, received.sequence) for received in reversed(batch)}
        known = await self.facts.known(table, batch)
        first = places | known
        duplicates = {r.sequence for r in batch if first[r.event_id] != Place(incarnation, r.sequence)}
        fresh = [r for r in batch if r.event_id not in known and r.sequence not in duplicates]
        at = self.now()
        await self.facts.insert(table.name, [row_of(table, one, incarnation, at) for one in fresh], again=again)
        repeated = [received for received in batch if received.sequence in duplicates]
        late = await self._retell(table, repeated, first) if table.name == "trajectories" else {}
        await self._account(incarnation, batch, duplicates)
        for received in fresh:
            if isinstance(received.message, Trajectory):
                _count(received.message)
        if batch[0].stream in AWAITED and not again:
            await self._announce(_announcement(incarnation, batch))
        return [Done(late.get(received.sequence, ())) for received in batch]

    async def _announce(self, stored: Stored) -> None:
        """Publish it here, before any message of the batch is acked.

        A service that waits for it is late without it, and not wrong: so storing never depends on it.
        """
        try:
            await self.publish(stored)
        except Unavailable as error:
            log.warning("stored messages are not announced", stream=stored.stream, reason=str(error))

    async def _retell(self, table: Table, batch: Batch, first: Mapping[str, Place]) -> Mapping[int, Sequence[Message]]:
        """Fuller tellings take the place of provisional ones; returns what follows from them, by sequence.

        The row remembers which message replaced it, so that a redelivery of that one has the same consequence.
        """
        told = await self.facts.told(table, batch) if batch else {}
        follows: dict[int, Sequence[Message]] = {}
        for received in batch:
            stored = told.get(received.event_id)
            if stored is not None and is_fuller(received.message, stored):
                place = first[received.event_id]
                row = row_of(table, received, place.incarnation, self.now()) | {"sequence": place.sequence}
                stored = told[received.event_id] = told_of(received.message, retold_by=received.sequence)
                await self.facts.replace(table.name, row, received.sequence)
                metrics.RETOLD.inc()
            if stored is not None and stored.retold_by == received.sequence:
                update = update_of(received.message)
                follows[received.sequence] = [update] if update else []
        return follows

    async def end(self, batch: Batch) -> Sequence[Outcome]:
        """Assemble each ended trajectory once its turns are stored."""
        outcomes = [await self._end(received) for received in batch]
        settled = [r for r, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Done)]
        if settled:
            await self.store(TABLES[TrajectoryEnd.TOPIC], settled)
        for received, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Retry):
                self._first_looks.pop(received.sequence, None)
        return outcomes

    async def restore(self, batch: Batch) -> Sequence[Message]:
        """Store settled messages again; returns the events to publish, each of which was published before.

        The end of a trajectory is stored only: what it led to is a message of its own.
        """
        outcomes: list[Outcome] = []
        for topic, table in TABLES.items():
            part = [received for received in batch if topic == received.message.TOPIC]
            outcomes += await self.store(table, part, again=True) if part else []
        return [event for outcome in outcomes if isinstance(outcome, Done) for event in outcome.events]

    async def dead(self, stream: str, sequences: Sequence[int]) -> None:
        """Account for dead letters."""
        incarnation = await self.incarnations.current(stream, self.consumer)
        entries = [Entry(sequence, DEAD) for sequence in sequences]
        await self.ledger.write(Account(stream, self.consumer, incarnation), entries, self.now())
        for sequence in sequences:
            self._first_looks.pop(sequence, None)
        metrics.STORED.labels(stream, DEAD).inc(len(sequences))

    async def _end(self, received: Received[TrajectoryEnd]) -> Outcome:
        end = received.message
        turns = await self._turns(end)
        if not is_complete(end, turns) and self._is_patient(received.sequence):
            reason = f"{len(turns)} of {end.turns or 'some'} turns stored"
            return Retry(reason, delay_s=min(2.0, 0.1 * received.delivered))
        if not any(turn.response for turn in turns):
            return Dead("rejected", f"trajectory {end.trajectory_id} ended without an answered turn")
        try:
            return Done([assemble(end, turns)])
        except ChatError as error:
            return Dead("rejected", f"trajectory {end.trajectory_id} cannot be assembled: {error}")

    async def _turns(self, end: TrajectoryEnd) -> Sequence[Any]:
        try:
            return await self.facts.turns(end.role, end.trajectory_id)
        except Unavailable:
            self._first_looks.clear()
            raise

    def _is_patient(self, sequence: int) -> bool:
        """Patience is time, and only time in which the warehouse was there to store what is waited for."""
        now = self.now()
        return now - self._first_looks.setdefault(sequence, now) < self.patience

    async def _account(self, incarnation: str, batch: Batch, duplicates: set[int]) -> None:
        stream = batch[0].stream
        entries = [Entry(r.sequence, DUPLICATE if r.sequence in duplicates else STORED, r.time) for r in batch]
        await self.ledger.write(Account(stream, self.consumer, incarnation), entries, self.now())
        for entry in entries:
            metrics.STORED.labels(stream, entry.outcome).inc()


def _announcement(incarnation: str, batch: Batch) -> Stored:
    """That the messages of a batch are in the history."""
    ranges: list[SequenceRange] = []
    for sequence in sorted({received.sequence for received in batch}):
        if ranges and sequence == ranges[-1].last + 1:
            ranges[-1] = SequenceRange(first=ranges[-1].first, last=sequence)
        else:
            ranges.append(SequenceRange(first=sequence, last=sequence))
    return Stored(stream=batch[0].stream, incarnation=incarnation, sequences=ranges)


def _count(trajectory: Trajectory) -> None:
    kind = trajectory.subordinate_profile or "main"
    metrics.COLLECTED.labels(kind, trajectory.task_context.domain or "general").inc()
    metrics.LENGTH.observe(len(trajectory.turns))
