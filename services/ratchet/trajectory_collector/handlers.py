"""One handler per topic: facts become rows, the end of a trajectory becomes a trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from ratchet.bus.consumer import BatchHandler, Dead, Done, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.core.contract import Message, Stored, Trajectory, TrajectoryEnd
from ratchet.core.contract.operations import SequenceRange
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.rules.chat import ChatError
from ratchet.core.stores.stored_watch import AWAITED
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts, Place, RunKey
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.domain import (
    Assembled,
    Inference,
    Run,
    assemble,
    is_complete,
    is_fuller,
    report_of,
    reported,
    update_of,
)
from ratchet.trajectory_collector.erasing.tombstones import Tombstones
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.ledger import DEAD, DUPLICATE, STORED, Account, Entry, ranges
from ratchet.trajectory_collector.rows import TABLES, Event, Table, row_of
from ratchet.trajectory_collector.screening import Screen

log = structlog.get_logger()

Batch = Sequence[Received[Any]]
"""`Any` because one subscription carries several message types."""
OF_ANOTHER = "is that of another event: give each an id of its own, and publish it again"
"""Why an event is dead that came under the id, and the key, of one that is stored."""


@dataclass(frozen=True)
class Collector:
    """The handlers of one stream; its ledger entries carry the name of its `consumer`."""

    facts: Facts
    ledger: Ledger
    generations: Generations
    consumer: str
    now: Callable[[], datetime]
    patience: timedelta
    """How long the end of a trajectory waits for its turns, counted from the first query that ClickHouse answered."""
    publish: Callable[[Message], Awaitable[None]]
    """`Bus.publish`, for announcements."""
    screen: Screen
    """Takes secrets out of what no client or gateway has redacted."""
    tombstones: Tombstones
    """Drops what is erased and comes late."""
    inference: Inference
    """What an outcome is inferred from, where none is reported."""
    _waiting_since: dict[int, datetime] = field(default_factory=dict[int, datetime])
    """By sequence of an end that waits: when ClickHouse first answered that turns are missing."""

    def handler(self, topic: str) -> BatchHandler:
        """The handler of a topic's messages."""
        handler = self.end if topic == TrajectoryEnd.TOPIC else partial(self.store, TABLES[topic])
        return self.tombstones.before(self.consumer, self.screen.before(handler))

    async def store(self, table: Table, batch: Batch, *, again: bool = False) -> Sequence[Outcome]:
        """Insert the new messages, announce the batch, write the ledger.

        Who waits for a row need not wait for the ledger; who needs it, for a message without a row, asks again.

        `again`: the batch was settled before, and its rows or entries are gone.
        """
        stream = batch[0].stream
        with self._stopping_the_clock():
            generation = await self.generations.of(self.consumer, batch)
            places = {table.event_of(received): Place(generation, received.sequence) for received in reversed(batch)}
            known = await self.facts.known(table, batch)
            first = places | known
            repeated = [r for r in batch if first[table.event_of(r)] != Place(generation, r.sequence)]
            fates = dict.fromkeys((received.sequence for received in repeated), DUPLICATE)
            fresh = [r for r in batch if table.event_of(r) not in known and r.sequence not in fates]
            at = self.now()
            await self.facts.insert(table, [row_of(table, r, generation, at) for r in fresh], again=again)
            updates = await self._supersede(table, repeated, first) if table is TABLES[Trajectory.TOPIC] else {}
            fates |= dict.fromkeys(await self.facts.strangers(table, repeated), DEAD)
            entries = [Entry(r.sequence, fates.get(r.sequence, STORED), r.time) for r in batch]
            if stream in AWAITED and not again:
                await self._announce(generation, batch)
            await self.ledger.write(Account(stream, self.consumer, generation), entries, self.now())
        for entry in entries:
            if entry.outcome != DEAD:  # `dead` counts it
                metrics.STORED.labels(stream, entry.outcome).inc()
        for received in fresh:
            if isinstance(trajectory := received.message, Trajectory):
                metrics.count_stored(trajectory)
        return [
            Dead("rejected", f"its event id, {received.event_id}, {OF_ANOTHER}")
            if fates.get(received.sequence) == DEAD
            else Done(updates.get(received.sequence, ()))
            for received in batch
        ]

    async def _announce(self, generation: str, batch: Batch) -> None:
        """Publish that the batch is stored, before any message of it is acked.

        A service that waits for the announcement is late without it, and not wrong: so storing never depends on it.
        """
        stored = ranges(sorted({received.sequence for received in batch}))
        sequences = [SequenceRange(first=run.first, last=run.last) for run in stored]
        try:
            await self.publish(Stored(stream=batch[0].stream, generation=generation, sequences=sequences))
        except RatchetError as error:
            log.warning("stored messages are not announced", stream=batch[0].stream, reason=str(error))

    async def _supersede(
        self, table: Table, batch: Batch, first: Mapping[Event, Place]
    ) -> Mapping[int, Sequence[Message]]:
        """Replace provisional rows by fuller reports; returns the events that follow, by sequence.

        The row remembers which message replaced it, so that a redelivery of that one has the same consequence.
        """
        reports = await self.facts.reports(table, batch) if batch else {}
        events: dict[int, Sequence[Message]] = {}
        for received in batch:
            event = table.event_of(received)
            stored = reports.get(event)
            if stored is not None and is_fuller(received.message, stored):
                place = first[event]
                row = row_of(table, received, place.generation, self.now()) | {"sequence": place.sequence}
                stored = reports[event] = report_of(received.message, superseded_by=received.sequence)
                await self.facts.replace(table.name, row, received.sequence)
                metrics.SUPERSEDED.inc()
            if stored is not None and stored.superseded_by == received.sequence:
                update = update_of(received.message)
                events[received.sequence] = [update] if update else []
        return events

    async def end(self, batch: Batch) -> Sequence[Outcome]:
        """Assemble each ended trajectory once its turns are stored.

        Their runs are read together: a query for each end would let ends wait behind each other when ClickHouse is
        slow, and outcomes that come late say nothing about a canary any more.
        """
        ends: dict[RunKey, list[Received[TrajectoryEnd]]] = {}
        for received in batch:
            ends.setdefault((received.message.role, received.message.trajectory_id), []).append(received)
        assembled: dict[int, Outcome] = {}
        with self._stopping_the_clock():
            async for key, run in self.facts.runs(ends):
                for received in ends[key]:
                    assembled[received.sequence] = await self._assembled(received, run)
        outcomes = [assembled[received.sequence] for received in batch]
        settled = [r for r, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Done)]
        if settled:
            await self.store(TABLES[TrajectoryEnd.TOPIC], settled)
        for received, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Retry):
                self._waiting_since.pop(received.sequence, None)
        return outcomes

    async def _assembled(self, received: Received[TrajectoryEnd], run: Run) -> Outcome:
        end = received.message
        if not is_complete(end, run):
            now = self.now()
            if now - self._waiting_since.setdefault(received.sequence, now) < self.patience:
                reason = f"{len(run.turns)} of {end.turns or 'some'} turns stored"
                return Retry(reason, delay_s=min(2.0, 0.1 * received.delivered))
        if not run.turns:
            return Dead("rejected", f"trajectory {end.trajectory_id} ended without a recorded call")
        try:
            assembled = await asyncio.to_thread(assemble, end, run, self.inference)
        except ChatError as error:
            return Dead("rejected", f"trajectory {end.trajectory_id} cannot be assembled: {error}")
        report_gaps(end.trajectory_id, run, assembled)
        return Done([reported(trajectory, received.time) for trajectory in assembled.trajectories])

    async def restore(self, batch: Batch) -> Sequence[Message]:
        """Store settled messages again; returns the events to publish, each of which was published before.

        The end of a trajectory is only stored: the trajectory that followed from it is a message of its own.
        """
        outcomes: list[Outcome] = []
        for topic, table in TABLES.items():
            part = [received for received in batch if topic == received.message.TOPIC]
            if part:
                store = self.screen.before(partial(self.store, table, again=True))
                outcomes += await self.tombstones.handle(self.consumer, part, store)
        return [event for outcome in outcomes if isinstance(outcome, Done) for event in outcome.events]

    async def dead(self, stream: str, sequences: Sequence[int]) -> None:
        """Write dead letters into the ledger."""
        generation = await self.generations.current(stream, self.consumer)
        entries = [Entry(sequence, DEAD) for sequence in sequences]
        await self.ledger.write(Account(stream, self.consumer, generation), entries, self.now())
        for sequence in sequences:
            self._waiting_since.pop(sequence, None)
        metrics.STORED.labels(stream, DEAD).inc(len(sequences))

    @contextmanager
    def _stopping_the_clock(self) -> Iterator[None]:
        """While ClickHouse is away, ends wait for it and not for their turns: their patience begins anew."""
        try:
            yield
        except Unavailable:
            self._waiting_since.clear()
            raise


def report_gaps(trajectory_id: str, run: Run, assembled: Assembled) -> None:
    """Count and log what of a run is in no trajectory: conversations that cannot be assembled, and calls."""
    if run.left_out:
        metrics.LEFT_OUT.inc(run.left_out)
        log.warning("run has more turns than one assembly takes", trajectory=trajectory_id, left_out=run.left_out)
    if assembled.repeated:
        metrics.REPEATED.inc(assembled.repeated)
        log.info("another answer to the same prompt counts", trajectory=trajectory_id, calls=assembled.repeated)
    for reason in assembled.unreadable:
        metrics.UNASSEMBLED.inc()
        log.warning("conversation cannot be assembled", trajectory=trajectory_id, reason=reason[:500])
