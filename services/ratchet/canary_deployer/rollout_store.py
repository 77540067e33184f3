"""Stores one role's rollout: the record in bucket `rollouts`, and the trajectories, too many for it, in chunks.

A save has three steps:

1. it writes the chunks that have changed, each under a name that no other state of it ever had
   (`<role>.<number>.<token>`);
2. it writes the record that names them, by compare-and-set;
3. it deletes the chunks that the record no longer names.

A crash before step 2 leaves chunks that no record names, a crash after it leaves old ones; the next save that succeeds
deletes both. A deployer that lost the compare-and-set deletes nothing. The record holds the statistics together with
their places in the streams, so a new process folds again whatever was folded after the last save.

Only the leader writes (`service.leadership`). It writes a record that another term has left with its own term first.

The record counts how long a stage, a soak or a deadline has lasted in ticks of the monotonic clock and is saved with
every lease: setting a wall clock shortens and lengthens nothing. Time without a running deployer does not count.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Container, Coroutine, Sequence, Set as AbstractSet
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog

from ratchet.bus.kv import Bucket, Entry
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.rollout import TERMINAL, WITH_TRAFFIC, Rollout, State, without_statistics
from ratchet.canary_deployer.domain.rollout_statistics import ChunkName, LiveStatistics, can_continue
from ratchet.canary_deployer.domain.summary import e_values
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.nats_events import Read
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.core.errors import BusUnavailable, Conflict, RatchetError, Unavailable, Unreadable

log = structlog.get_logger()

T = TypeVar("T")

SAVE_S = 1.0
"""Statistics are saved at most this often between decisions, and less often ..."""
SAVE_CHUNK_S = 0.02
"""... by this much for each chunk that is open, ..."""
LONGEST_SAVE_S = 5.0
"""... but at least this often: a crash makes the next process fold again what was folded since."""
AT_ONCE = 32
"""Requests for chunks on their way to the broker at the same time."""


class ChunksLost(RatchetError):
    """A record names a chunk that the bucket does not hold, or holds as something else."""


class RolloutStore:
    """The newest rollout of one role. A caller holds `lock` from `load` to the write that depends on it."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self.lock = asyncio.Lock()
        self.rollout: Rollout | None = None
        """The rollout in memory: as `load` has read it, with what was observed since."""
        self.lost: str | None = None
        """Why the trajectories of a rollout with traffic cannot be read; None when they can."""
        self.generation = 0
        """Grows whenever the record is read again: what was folded since the last save is gone then."""
        self._chunk_store = ChunkStore(self.context.role, self.context.chunks)
        self._loaded = False
        self._revision: int | None = None
        self._unsaved = False
        self._saved_at = -math.inf
        self._ticked_at: float | None = None
        self._live: tuple[str, LiveStatistics] | None = None
        """The id of the rollout whose trajectories are in memory, and its statistics with them."""

    async def load(self) -> Rollout | None:
        """The newest rollout: read from the bucket at first and after `forget`, from memory otherwise."""
        if self._loaded:
            return self.rollout
        entry, self.lost = await self._read_record()
        self.rollout, self._revision = (entry.value, entry.revision) if entry else (None, None)
        self._unsaved, self._live = False, None
        if self.rollout is not None:
            self.rollout, set_back = await self._caught_up(self.rollout)
            self.lost = set_back or self.lost
        self.generation += 1
        if self.lost is None:
            term = self.context.lead.term
            if self.rollout is not None and self.rollout.term != term:
                # A write that the former leader still has on its way now meets another revision, and fails.
                await self.save(msgspec.structs.replace(self.rollout, term=term))
                self._ticked_at = None
            if self.rollout is not None and self.rollout.state in WITH_TRAFFIC:
                self._live, self.lost = await self._read_trajectories(self.rollout)
        self._loaded = True
        if self.rollout is not None:
            self._show(self.rollout)
            metrics.show_gates(self.rollout)
        return self.rollout

    async def load_same(self, rollout: Rollout, states: Container[State]) -> Rollout | None:
        """The newest rollout, if it still is this one and in one of these states: an operator may have ended it."""
        current = await self.load()
        same = current is not None and current.rollout_id == rollout.rollout_id and current.state in states
        return current if same else None

    def forget(self) -> None:
        """Read the record again before the next step: after a fault it is unknown which writes have arrived."""
        self._loaded = False

    async def save(self, rollout: Rollout) -> None:
        """Write the changed chunks, then the record by compare-and-set, then delete the chunks that it does not name.

        Raises `Conflict` when another deployer has written the record meanwhile. A rollout that has ended names none.
        """
        names = () if rollout.state in TERMINAL else rollout.statistics.chunks
        try:
            await self.context.lead.confirm()
            if rollout.state not in TERMINAL and self._live and self._live[0] == rollout.rollout_id:
                window = self._live[1].window
                names = await self._chunk_store.write(window.chunks, window.changed)
                window.changed.clear()
            statistics = msgspec.structs.replace(rollout.statistics, chunks=names)
            rollout = msgspec.structs.replace(rollout, statistics=statistics)
            if self._revision is None:
                self._revision = await self.context.rollouts.create(self.context.role, rollout)
            else:
                self._revision = await self.context.rollouts.update(self.context.role, rollout, self._revision)
        except (Unavailable, Conflict):
            self.forget()
            raise
        self.rollout, self._unsaved, self._saved_at = rollout, False, self.context.monotonic()
        await self._chunk_store.delete_all_but(names)

    def aged(self, rollout: Rollout) -> Rollout:
        """The rollout, older by the time since the last tick if it has traffic. Begins the next tick."""
        now, before = self.context.monotonic(), self._ticked_at
        self._ticked_at = now
        if before is None or rollout.state not in WITH_TRAFFIC:
            return rollout
        passed_s = min(now - before, self.context.longest_tick_s)
        return msgspec.structs.replace(
            rollout, stage_age_s=rollout.stage_age_s + passed_s, age_s=rollout.age_s + passed_s
        )

    def folded(self, rollout: Rollout, read: Read) -> Rollout:
        """The rollout with the events that were read. The trajectories change in place; `save` writes them."""
        if self._live is None or self._live[0] != rollout.rollout_id:
            self._live = (rollout.rollout_id, LiveStatistics(rollout.statistics, [], rollout.under(self.context.rules)))
            self._chunk_store.begin()
        live = self._live[1]
        live.fold(read.batch, rollout.compared, rollout.under(self.context.rules))
        fresh = live.record(rollout.weight, rollout.statistics.chunks)
        statistics = msgspec.structs.replace(fresh, trail=rollout.statistics.trail)
        return msgspec.structs.replace(rollout, statistics=statistics, **msgspec.structs.asdict(read.places))

    async def keep_statistics(self, rollout: Rollout) -> None:
        """Show new statistics, and save them unless the last save was only just now."""
        before = self.rollout
        if before is not None and rollout != before:
            places, places_before = ((seen.turn_seq, seen.feedback_seq, seen.reward_seq) for seen in (rollout, before))
            self._unsaved = self._unsaved or rollout.statistics != before.statistics or places != places_before
            self.rollout = rollout
            metrics.count_errors(rollout, before)
            self._show(rollout)
        pause_s = min(LONGEST_SAVE_S, SAVE_S + SAVE_CHUNK_S * len(rollout.statistics.chunks))
        if self.context.monotonic() - self._saved_at >= (pause_s if self._unsaved else self.context.lease_s):
            await self.save(rollout)

    def _show(self, rollout: Rollout) -> None:
        metrics.show_rollout(rollout, e_values(rollout.statistics, rollout.under(self.context.rules)))

    async def _read_record(self) -> tuple[Entry[Rollout] | None, str | None]:
        """The record; and, where its statistics cannot be read and traffic depends on them, why not.

        A rollout without traffic needs no statistics: its decisions and the questions that it waits for stand beside
        them.
        """
        try:
            return await self.context.rollouts.get(self.context.role), None
        except Unreadable as error:
            rest = without_statistics(error.stored)
            if rest is None:
                raise
            log.error("statistics of a rollout left out", role=self.context.role, reason=str(error))
            lost = f"statistics of the rollout cannot be read: {error.reason}" if rest.state in WITH_TRAFFIC else None
            return Entry(rest, error.revision), lost

    async def _caught_up(self, rollout: Rollout) -> tuple[Rollout, str | None]:
        """See `decisions.caught_up`. The log is read where the route knows another decision than the record."""
        route = await self.context.policies.route(rollout.role)
        if route is None or route.audit_hash is None or route.audit_hash in decisions.known_hashes(rollout):
            return rollout, None
        return decisions.caught_up(rollout, route, await self.context.decisions_of(rollout.role))

    async def _read_trajectories(self, rollout: Rollout) -> tuple[tuple[str, LiveStatistics] | None, str | None]:
        """The trajectories of a record that was just read, or why they cannot be read.

        Chunks are deleted only once a newer record names others: while the record is the same, missing chunks stay
        missing, and an operator's act must not wait for them.
        """
        rules = rollout.under(self.context.rules)
        if not can_continue(rollout.statistics, rules):
            return None, "its statistics are those of other tests: another version wrote them, or settings have changed"
        try:
            chunks = await self._chunk_store.read(rollout.statistics.chunks)
        except ChunksLost as error:
            now = await self.context.rollouts.get(self.context.role)
            if now is None or now.revision != self._revision:
                raise BusUnavailable("the record has changed meanwhile: reading it again") from error
            return None, str(error)
        return (rollout.rollout_id, LiveStatistics(rollout.statistics, chunks, rules)), None


class ChunkStore:
    """Writes and reads one role's chunks, one call at a time."""

    def __init__(self, role: str, bucket: Bucket[Chunk]) -> None:
        self._role = role
        self._bucket = bucket
        self._names: dict[int, ChunkName] = {}
        self._stored: set[str] | None = None
        """Names in the bucket; None until they have been listed."""

    def begin(self) -> None:
        """A new rollout has no chunks yet."""
        self._names = {}

    async def read(self, names: Sequence[ChunkName]) -> list[Chunk]:
        """The chunks that a record names, in its order. Raises `ChunksLost`."""
        self._names, self._stored = {name.number: name for name in names}, None
        return await _gathered([self._read_chunk(name.name) for name in names])

    async def write(self, chunks: Sequence[Chunk], changed: AbstractSet[int]) -> tuple[ChunkName, ...]:
        """Write the chunks that have changed under new names; returns the names of all."""
        fresh = [chunk for chunk in chunks if chunk.number in changed or chunk.number not in self._names]
        named = {
            chunk.number: ChunkName(chunk.number, f"{self._role}.{chunk.number}.{uuid.uuid4().hex[:12]}")
            for chunk in fresh
        }
        if self._stored is not None:
            self._stored.update(chunk.name for chunk in named.values())
        await _gathered([self._bucket.put(named[chunk.number].name, chunk) for chunk in fresh])
        self._names = {chunk.number: named.get(chunk.number) or self._names[chunk.number] for chunk in chunks}
        return tuple(self._names.values())

    async def delete_all_but(self, names: Sequence[ChunkName]) -> None:
        """Delete the chunks that the record just written does not name; the next save tries again where this fails."""
        with suppress(Unavailable):
            if self._stored is None:
                self._stored = {*await self._bucket.keys(self._role)}
            for name in self._stored - {chunk.name for chunk in names}:
                await self._bucket.delete(name)
                self._stored.discard(name)

    async def _read_chunk(self, name: str) -> Chunk:
        try:
            entry = await self._bucket.get(name)
        except Unreadable as error:
            raise ChunksLost(f"trajectories of the rollout cannot be read: {name}: {error.reason}") from error
        if entry is None:
            raise ChunksLost(f"trajectories of the rollout are gone: {name}")
        return entry.value


async def _gathered(requests: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def bounded(request: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await request

    return await asyncio.gather(*(bounded(request) for request in requests))
