"""Carries erasures out in the streams and tables: every step may be repeated, and begins anew after a crash.

1. The table `erased` gets all ids that the erasure covers: from now on what comes late is dropped (`tombstones.py`).
2. Every stream that holds words is read once for all erasures; what is theirs is `erased` in the ledger, then removed.
3. What the tables' rows came from is `erased` in the ledger, then the rows are removed.
4. The answers of judges that are kept by digest are forgotten, all of them: nothing says whose they are.

A second look `settle_s` later finds what was on its way meanwhile. The erasure is `removed` once a look removes
nothing, and the files are gone from which ClickHouse has taken rows.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import msgspec
import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Headers, unseal
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.stream_configs import BUCKET
from ratchet.core.contract import DeadLetter
from ratchet.core.contract.erasure import (
    AGENT,
    ASKED,
    DONE,
    ERASURES,
    MOST_DAMAGED,
    REMOVED,
    SESSION,
    TRAJECTORY,
    USER,
    Erasure,
)
from ratchet.core.datasets.archives import Archives, Pairs, Person
from ratchet.core.errors import InvalidMessage
from ratchet.core.rules.erasing import Erasures, Names, names_in
from ratchet.core.stores.erased import KEYS, Erased
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.archiving import erase_archived
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.erasing.tombstones import Tombstones, own_pairs_of, pairs_of
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.ledger import ERASED, Account
from ratchet.trajectory_collector.nats_streams import Streams

log = structlog.get_logger()

DEAD_LETTERS = "RL_DEADLETTERS"
JUDGES_ANSWERS = f"{BUCKET}judgements"
"""Of the reward computer: a cache, which the collector empties and does not read."""
MEMBERS: Mapping[str, Person] = {
    USER: "user_ref",
    SESSION: "session_id",
    AGENT: "agent_id",
    TRAJECTORY: "trajectory_id",
}
CHECKED_S = 600.0
AT_ONCE = 10_000
"""Places of rows that are written to the ledger together."""


@dataclass(frozen=True)
class Eraser:
    """The worker. Raises `Unavailable` where a store is away: the next tick goes on."""

    bus: Bus
    erased: Erased
    ledger: Ledger
    generations: Generations
    streams: Streams
    tombstones: Tombstones
    archives: Archives
    consumers: Mapping[str, str]
    """The collector's durable by stream, of those that hold words of people and agents."""
    tables: Mapping[str, Sequence[str]]
    """The tables of each."""
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    settle_s: float
    """How long what was handled before the tombstones stood may take to its row."""
    _looked: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """By erasure, when the first look that counts was over; by the monotonic clock."""
    _clean: set[str] = field(default_factory=set[str], init=False)
    """Erasures of which the last look removed nothing."""

    _checked: list[float] = field(default_factory=list[float], init=False)
    """When the ids of all erasures were last compared with the warehouse."""

    async def tick(self) -> None:
        """Go on with every erasure that is asked for."""
        await self._begin_anew()
        asked = [erasure for erasure in await self.tombstones.look() if erasure.phase == ASKED]
        due = [erasure for erasure in asked if self._is_due(erasure)]
        if due:
            await self._look_through(due)
        for erasure in asked:
            if erasure.erasure_id in self._clean and not await self.erased.has_remains(erasure):
                self._clean.discard(erasure.erasure_id)
                self._looked.pop(erasure.erasure_id, None)
                await self._change(
                    erasure, lambda now: msgspec.structs.replace(now, phase=REMOVED, removed_at=self.now())
                )

    async def _begin_anew(self) -> None:
        """Now and then: once more where ids are gone, because the warehouse was restored, or where some came with what
        was late: more of their run may be stored; or where a file is gone or whole again that was damaged."""
        if self._checked and self.monotonic() - self._checked[-1] < CHECKED_S:
            return
        counts = await self.erased.counts()
        ended = [erasure for erasure in await self.tombstones.look() if erasure.phase in (REMOVED, DONE)]
        damaged = {uri for erasure in ended for uri in erasure.damaged}
        if damaged:
            damaged.intersection_update(await asyncio.to_thread(self.archives.damaged, damaged))
        for erasure in ended:
            if counts.get(erasure.erasure_id, 0) != erasure.ids or not damaged.issuperset(erasure.damaged):
                await self._change(erasure, lambda now: msgspec.structs.replace(now, phase=ASKED))
        self._checked[:] = [self.monotonic()]

    def _is_due(self, erasure: Erasure) -> bool:
        looked = self._looked.get(erasure.erasure_id)
        has_settled = looked is None or self.monotonic() - looked >= self.settle_s
        return has_settled and erasure.erasure_id not in self._clean

    async def _look_through(self, erasures: Sequence[Erasure]) -> None:
        """Remove what is there now, of all erasures together."""
        for erasure in erasures:
            await self._list_archived(erasure)
        listed = {erasure.erasure_id: await self.erased.list_ids(erasure) for erasure in erasures}
        removed: dict[str, Counter[str]] = {erasure.erasure_id: Counter() for erasure in erasures}
        owners: dict[tuple[str, str], str] = {}
        for erasure in erasures:
            owners |= dict.fromkeys(await self.erased.ids(erasure.erasure_id), erasure.erasure_id)
        for stream in (*self.consumers, DEAD_LETTERS):
            await self._remove_messages(stream, Erasures(erasures), owners, removed)
        for erasure in erasures:
            await self._settle_rows(erasure)
        rows = await self.erased.remove_rows([*removed])
        for erasure in erasures:
            ids = await self.erased.ids(erasure.erasure_id)
            archived = await self._erase_archived(erasure, ids)
            removed[erasure.erasure_id] += rows[erasure.erasure_id] + Counter(archive=archived)
        await self.streams.purge(JUDGES_ANSWERS)
        for erasure in erasures:
            await self._note(erasure, listed[erasure.erasure_id], removed[erasure.erasure_id])

    async def _list_archived(self, erasure: Erasure) -> None:
        """List the ids of what has left the tables, and of what belongs to it there."""
        known = await self.erased.ids(erasure.erasure_id)
        pairs = await asyncio.to_thread(self.archives.ids_of, MEMBERS[erasure.kind], erasure.ref, known)
        own = {pair for pair in pairs if erasure.role in (None, pair[0])}
        await self.erased.add(erasure.erasure_id, own, self.now())

    async def _erase_archived(self, erasure: Erasure, ids: Pairs) -> int:
        """Remove the rows of the archive, and note the files that cannot be read; the number of rows."""
        done = await erase_archived(self.archives, self.erased, ids, erasure.role)
        damaged = done.damaged[:MOST_DAMAGED]
        if damaged != erasure.damaged:
            await self._change(erasure, lambda now: msgspec.structs.replace(now, damaged=damaged))
        return done.rows

    async def _remove_messages(
        self,
        stream: str,
        erasures: Erasures,
        owners: Mapping[tuple[str, str], str],
        removed: Mapping[str, Counter[str]],
    ) -> None:
        """Read a stream to its end; what is erased is settled in the ledger first, then removed."""
        async with aclosing(OrderedReader(self.bus, stream).to_end()) as batches:
            async for batch in batches:
                theirs: list[int] = []
                for message in batch:
                    names = names_of(message)
                    erasure = erasures.which(names)
                    owner = erasure.erasure_id if erasure else None
                    if erasure is not None:
                        await self.erased.add(erasure.erasure_id, own_pairs_of(names), self.now())
                    owner = owner or next((owners[pair] for pair in pairs_of(names) if pair in owners), None)
                    if owner is not None:
                        theirs.append(message.metadata.sequence.stream)
                        removed[owner][stream] += 1
                if theirs:
                    await self._settle(stream, theirs)
                    await self.streams.erase(stream, theirs)

    async def _settle(self, stream: str, sequences: Sequence[int]) -> None:
        if stream in self.consumers:
            generation = await self.generations.current(stream, self.consumers[stream])
            await self.ledger.erase(Account(stream, self.consumers[stream], generation), sequences, self.now())
            metrics.STORED.labels(stream, ERASED).inc(len(sequences))

    async def _settle_rows(self, erasure: Erasure) -> None:
        """Settle what rows came from, also where the stream no longer holds it."""
        for stream, consumer in self.consumers.items():
            for table in set(self.tables[stream]) & KEYS.keys():
                after = ("", 0)
                while places := await self.erased.places(erasure.erasure_id, table, after, AT_ONCE):
                    for generation, group in groupby(places, key=lambda place: place[0]):
                        sequences = [sequence for _, sequence in group]
                        await self.ledger.erase(Account(stream, consumer, generation), sequences, self.now())
                    after = places[-1]

    async def _note(self, erasure: Erasure, ids: int, removed: Counter[str]) -> None:
        """Note what a look has removed. One that removed nothing, after the first, is the last."""

        def noted(now: Erasure) -> Erasure:
            return msgspec.structs.replace(now, removed=dict(Counter(now.removed) + removed), ids=ids)

        if removed or ids != erasure.ids:
            await self._change(erasure, noted)
        if removed:
            log.info("erased", erasure=erasure.erasure_id, ids=ids, **removed)
        elif erasure.erasure_id in self._looked:
            self._clean.add(erasure.erasure_id)
        self._looked[erasure.erasure_id] = self.monotonic()

    async def _change(self, erasure: Erasure, change: Callable[[Erasure], Erasure]) -> None:
        await Bucket(self.bus, ERASURES, Erasure).change(erasure.erasure_id, lambda now: change(now or erasure))


def names_of(message: Msg) -> Names:
    """What a message of any stream names; a dead letter, what its message did."""
    headers: Headers = dict(message.headers or {})
    try:
        body = unseal(headers, message.data)
        if message.subject.startswith(f"{DeadLetter.TOPIC}."):
            letter = decode(body, DeadLetter)
            body = unseal(letter.headers, base64.b64decode(letter.body))
    except (InvalidMessage, msgspec.DecodeError, ValueError):
        return Names()
    return names_in(body)
