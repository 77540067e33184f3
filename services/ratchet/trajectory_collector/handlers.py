"""One handler per topic: facts become rows, the end of a trajectory becomes a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.kernel.consumer import BatchHandler, Dead, Done, Outcome, Retry
from ratchet.kernel.received import Received
from ratchet.messages import Trajectory, TrajectoryEnd
from ratchet.messages.chat import ChatError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.domain import assemble, is_complete
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
        await self._account(batch, duplicates)
        for received in fresh:
            if isinstance(received.message, Trajectory):
                _count(received.message)
        return [Done()] * len(batch)

    async def end(self, batch: Batch) -> Sequence[Outcome]:
        """Assemble each ended trajectory once its turns are stored."""
        outcomes = [await self._end(received) for received in batch]
        settled = [r for r, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Done)]
        await self._account(settled, set())
        return outcomes

    async def dead(self, stream: str, sequence: int) -> None:
        """Account for a dead letter."""
        await self.facts.account(stream, self.consumer, {sequence: "dead"}, self.now())

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
