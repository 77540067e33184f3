"""One handler per topic: facts become rows, the end of a trajectory becomes a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.kernel.consumer import BatchHandler, Dead, Done, Outcome, Retry
from ratchet.kernel.received import Received
from ratchet.messages import Message, Trajectory, TrajectoryEnd
from ratchet.messages.chat import ChatError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.domain import assemble, is_complete, is_fuller, late_outcome, told_of
from ratchet.trajectory_collector.rows import TABLES, Table, row_of

Batch = Sequence[Received[Any]]
"""`Any` because one subscription carries several message types."""


@dataclass(frozen=True)
class Collector:
    """The handlers of one stream; `consumer` is the name its ledger rows carry."""

    facts: Facts
    consumer: str
    now: Callable[[], datetime]
    assembly_patience: int

    def table(self) -> Mapping[str, BatchHandler]:
        """Topic -> handler, for every topic that is stored, and for the end of trajectories."""
        handlers: dict[str, BatchHandler] = {topic: self._storing(table) for topic, table in TABLES.items()}
        handlers[TrajectoryEnd.TOPIC] = self.end
        return handlers

    def _storing(self, table: Table) -> BatchHandler:
        async def handle(batch: Batch) -> Sequence[Outcome]:
            return await self.store(table, batch)

        return handle

    async def store(self, table: Table, batch: Batch) -> Sequence[Outcome]:
        """Insert what is new, account for everything, count what is new."""
        known = await self.facts.known(table.name, [received.event_id for received in batch])
        first = {received.event_id: received.sequence for received in reversed(batch)} | known
        duplicates = {received.sequence for received in batch if first[received.event_id] != received.sequence}
        fresh = [r for r in batch if r.event_id not in known and r.sequence not in duplicates]
        at = self.now()
        await self.facts.insert(table.name, [row_of(table, received, at) for received in fresh])
        again = [received for received in batch if received.sequence in duplicates]
        late = await self._retell(table, again, first) if table.name == "trajectories" else {}
        await self._account(batch, duplicates)
        for received in fresh:
            if isinstance(received.message, Trajectory):
                _count(received.message)
        return [Done(late.get(received.sequence, ())) for received in batch]

    async def _retell(self, table: Table, batch: Batch, first: Mapping[str, int]) -> Mapping[int, Sequence[Message]]:
        """Fuller tellings take the place of provisional ones; returns what follows from them, by sequence.

        The row remembers which message replaced it, so that a redelivery of that one has the same consequence.
        """
        told = await self.facts.told([received.event_id for received in batch]) if batch else {}
        follows: dict[int, Sequence[Message]] = {}
        for received in batch:
            stored = told.get(received.event_id)
            if stored is not None and is_fuller(received.message, stored):
                row = row_of(table, received, self.now())
                stored = told[received.event_id] = told_of(received.message, retold_by=received.sequence)
                await self.facts.replace(table.name, row | {"sequence": first[received.event_id]}, received.sequence)
                metrics.RETOLD.inc()
            if stored is not None and stored.retold_by == received.sequence:
                outcome = late_outcome(received.message)
                follows[received.sequence] = [outcome] if outcome else []
        return follows

    async def end(self, batch: Batch) -> Sequence[Outcome]:
        """Assemble each ended trajectory once its turns are stored."""
        outcomes = [await self._end(received) for received in batch]
        settled = [r for r, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Done)]
        await self._account(settled, set())
        return outcomes

    async def restore(self, batch: Batch) -> Sequence[Message]:
        """Store settled messages again; returns the events to publish, each of which was published before.

        The end of a trajectory is only accounted for: what it led to is a message of its own.
        """
        outcomes: list[Outcome] = []
        for topic, table in TABLES.items():
            part = [received for received in batch if topic == received.message.TOPIC]
            outcomes += await self.store(table, part) if part else []
        await self._account([received for received in batch if isinstance(received.message, TrajectoryEnd)], set())
        return [event for outcome in outcomes if isinstance(outcome, Done) for event in outcome.events]

    async def dead(self, stream: str, sequence: int) -> None:
        """Account for a dead letter."""
        await self.facts.account(stream, self.consumer, {sequence: "dead"}, self.now())
        metrics.STORED.labels(stream, "dead").inc()

    async def _end(self, received: Received[TrajectoryEnd]) -> Outcome:
        end = received.message
        turns = await self.facts.turns(end.role, end.trajectory_id)
        patient = received.delivered < self.assembly_patience
        if not is_complete(end, turns) and patient:
            reason = f"{len(turns)} of {end.turns or 'some'} turns stored"
            return Retry(reason, delay_s=min(2.0, 0.1 * received.delivered))
        if not any(turn.response for turn in turns):
            return Dead("rejected", f"trajectory {end.trajectory_id} ended without an answered turn")
        try:
            return Done([assemble(end, turns)])
        except ChatError as error:
            return Dead("rejected", f"trajectory {end.trajectory_id} cannot be assembled: {error}")

    async def _account(self, batch: Batch, duplicates: set[int]) -> None:
        if not batch:
            return
        stream = batch[0].stream
        outcomes = {r.sequence: "duplicate" if r.sequence in duplicates else "stored" for r in batch}
        await self.facts.account(stream, self.consumer, outcomes, self.now())
        for outcome in outcomes.values():
            metrics.STORED.labels(stream, outcome).inc()


def _count(trajectory: Trajectory) -> None:
    kind = trajectory.subordinate_profile or "main"
    metrics.COLLECTED.labels(kind, trajectory.task_context.domain or "general").inc()
    metrics.LENGTH.observe(len(trajectory.turns))
