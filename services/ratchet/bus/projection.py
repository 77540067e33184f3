"""State that is a fold over a stream: value and applied sequence change together, by compare-and-set.

Folding the whole stream again gives the same state, so states are stored once a second, however many messages changed
them: the state in memory is ahead of its bucket by so much. Acked consumers are never used for this: one redelivery
would apply an event twice. An event that was published twice is folded once, as long as fewer than `REMEMBERED` others
came in between: the broker itself knows an event's id for minutes only.

How far a projection has come stands in its bucket under `cursor-<name>` (`positions` reads them all): what a stream
holds beyond that must not be trimmed. Where messages are missing all the same (they aged out, the stream was removed
or made anew), the projection says so before it goes on: an alert, the count in its cursor, a check that fails for
`REPORT_S`, and one line in the log. It then goes on with the oldest message there is, and keeps its states: the check
belongs among the notes of a service, since the service does its work: waiting would not mend it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError
from prometheus_client import Counter

from ratchet.bus.connection import Bus, Extent
from ratchet.bus.failures import failure
from ratchet.bus.kv import Bucket
from ratchet.bus.message import Message
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.received import Received
from ratchet.bus.registry import ProjectionSpec, declared
from ratchet.bus.tasks import with_pauses
from ratchet.core.errors import ConfigError, Conflict, ContractError, Unavailable, Unreadable

log = structlog.get_logger()

S = TypeVar("S")
REMEMBERED = 4096
"""Events whose ids are remembered, over all states of a projection."""
MARK_BYTES = 8
"""Of an id, only a hash is kept: two of 4,096 are the same once in 10^12 projections."""
STORED_S = 1.0
"""How often states and cursor are stored at most: what was folded since is folded again after a crash."""
SKIP_S = 5.0
"""How often an idle projection looks whether its stream went on without messages for it."""
REPORT_S = 600.0
"""How long `check` names a loss: long enough to be seen."""

PASSING = (Unavailable, Conflict, nats.errors.Error, JetStreamError, TimeoutError)
"""Errors after which the projection starts over."""

LOST = Counter("ratchet_projection_lost_total", "Messages that were gone before they could be folded.", ["projection"])
FAILED = Counter("ratchet_projection_skipped_total", "Messages that could not be folded.", ["projection"])


class Folded(msgspec.Struct, Generic[S], frozen=True):
    """A state and the sequence of the last message that is in it."""

    applied_seq: int
    state: S


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a projection has come."""

    sequence: Annotated[int, msgspec.Meta(ge=0)]
    """The last message of the stream that is folded, or is none of its."""
    made: str = ""
    """When that stream was made (see `Extent`); empty before the first message."""
    lost: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Messages that were gone before they could be folded, since the projection began."""
    recent: bytes = b""
    """Hashes of the last events, oldest first."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a projection stands, for what trims its stream."""

    projection: str
    stream: str
    sequence: int
    """Messages up to this one are not needed any more; 0 while it has never run."""
    made: str
    lost: int


async def positions(bus: Bus) -> list[Position]:
    """Where every projection of the contracts stands. Raises `BusUnavailable`."""
    places: list[Position] = []
    for spec in bus.contracts.projections.values():
        entry = await Bucket(bus, spec.bucket, Cursor).get(f"cursor-{spec.name}")
        cursor = entry.value if entry else Cursor(0)
        places.append(Position(spec.name, spec.stream, cursor.sequence, cursor.made, cursor.lost))
    return places


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that were gone before a projection could fold them."""

    projection: str
    reason: str
    """One clear line."""
    identity: tuple[object, ...]
    """The same for the same gap, whichever process notices it and however often."""
    at: datetime


KeyOf = Callable[[Received[Message]], str | None]
"""Which state a message belongs to; None for none."""
OnGap = Callable[[Gap], Message]
"""The message that tells people what the states lack; it is published before the projection goes on."""


def project(
    bus: Bus,
    name: str,
    *,
    kind: type[S],
    key_of: KeyOf,
    step: Callable[[S | None, Received[Message]], S],
    on_gap: OnGap | None = None,
) -> Projection[S]:
    """The projection that the registry calls `name`: its `run` folds messages into states of `kind`.

    `key_of` says which state a message belongs to, `step` is the next state and pure, `on_gap` makes the message
    that tells people of lost ones. Raises `ConfigError` unless the registry has such a projection.
    """
    spec = declared("projection", name, bus.contracts.projections)
    bus.opened.add(name)
    return Projection(bus, spec, kind=kind, key_of=key_of, step=step, on_gap=on_gap)


class Projection(Generic[S]):
    """Keeps states in its bucket, under `<name>.<key>`. Made by `project`.

    One process owns a projection. A second one is harmless: the fold is deterministic, and the one that loses a
    compare-and-set reads the state again and goes on from there.
    """

    def __init__(
        self,
        bus: Bus,
        spec: ProjectionSpec,
        *,
        kind: type[S],
        key_of: KeyOf,
        step: Callable[[S | None, Received[Message]], S],
        on_gap: OnGap | None = None,
    ) -> None:
        """`kind`: the type of a state. `step`: the next state; pure."""
        self._bus = bus
        self._spec = spec
        self._name = spec.name
        self._key_of = key_of
        self._step = step
        self._on_gap = on_gap
        self._skipped, self._gone = FAILED.labels(spec.name), LOST.labels(spec.name)  # 0 from now on: a rise shows
        self._states: Bucket[Folded[S]] = Bucket(bus, spec.bucket, Folded[kind])
        self._cursors = Bucket(bus, spec.bucket, Cursor)
        self._folded: dict[str, Folded[S]] = {}
        self._revisions: dict[str, int] = {}
        self._changed: dict[str, Folded[S] | None] = {}
        """The states that are not stored yet, as the bucket has them."""
        self._made = ""
        self._applied = 0
        self._lost = 0
        self._recent: deque[bytes] = deque(maxlen=REMEMBERED)
        self._known: set[bytes] = set()
        self._stored_marks: tuple[bytes, ...] = ()
        """The remembered events once all of them are in the stored states; the stored cursor may be behind."""
        self._saved = 0
        self._saved_at = 0.0
        self._cursor_revision: int | None = None
        self._looked_at = 0.0
        self._reported_until = 0.0
        self._progress = asyncio.Condition()
        self._alone = Together(bus, self)

    def state(self, key: str) -> S | None:
        """The newest state of `key`, None while nothing was folded into it."""
        folded = self._folded.get(key)
        return folded.state if folded else None

    def states(self) -> dict[str, S]:
        """All states by key."""
        return {key: folded.state for key, folded in self._folded.items()}

    @property
    def spec(self) -> ProjectionSpec:
        """What the registry says of it."""
        return self._spec

    @property
    def stream(self) -> str:
        """The stream that is folded."""
        return self._spec.stream

    @property
    def applied(self) -> int:
        """Up to which sequence the stream is folded."""
        return self._applied

    def sequence(self, key: str) -> int:
        """Sequence of the last message that is in the state of `key`; 0 while there is none."""
        folded = self._folded.get(key)
        return folded.applied_seq if folded else 0

    async def wait_for(self, sequence: int, deadline_s: float = 5.0) -> None:
        """Return once `sequence` is folded. Raises `Unavailable` when that takes longer than the deadline."""
        try:
            async with asyncio.timeout(deadline_s), self._progress:
                await self._progress.wait_for(lambda: self._applied >= sequence)
        except TimeoutError as error:
            raise Unavailable(f"projection {self._name} is behind: {self._applied} of {sequence}") from error

    async def check(self) -> str | None:
        """A note: why its states may be wrong, for a while after messages were missing."""
        if time.monotonic() < self._reported_until:
            return f"projection {self._name} lacks messages that were gone before it read them ({self._lost} so far)"
        return None

    async def run(self) -> None:
        """Fold until stopped; whatever breaks, read the stored state again and go on from there."""
        await self._alone.run()

    async def stop(self) -> None:
        """Store what is folded and return from `run`."""
        await self._alone.stop()

    async def load(self) -> None:
        """Take over what is stored. The cursor is read first: a state may be ahead of it, but must not be behind."""
        prefix = f"{self._name}."
        with suppress(Conflict):  # then another process has stored what it folded, or the broker lost all it had
            await self._store_changed()  # an error ended the reading; their stream may be gone
        extent = await self._bus.extent(self._spec.stream)
        entry = await self._cursors.get(f"cursor-{self._name}")
        cursor, self._cursor_revision = (entry.value, entry.revision) if entry else (Cursor(0), None)
        stored = await self._states.items(lambda key: key.startswith(prefix))
        if entry is None:  # a cursor is stored before any state: these were on their way as the broker lost all it had
            for key in stored:
                await self._states.delete(key)
            stored = {}
        self._folded = {key.removeprefix(prefix): entry.value for key, entry in stored.items()}
        self._revisions = {key.removeprefix(prefix): entry.revision for key, entry in stored.items()}
        self._changed.clear()
        self._recent.clear()
        self._known.clear()
        if (cursor.sequence, cursor.made) != (self._saved, self._made):  # the cursor is not this process's
            places = range(0, len(cursor.recent), MARK_BYTES)
            self._stored_marks = tuple(cursor.recent[place : place + MARK_BYTES] for place in places)
        for mark in self._stored_marks:
            self._remember(mark)
        self._made, self._lost = extent.made, cursor.lost
        self._saved = cursor.sequence
        start = await self._start_after(cursor, extent)
        if start != cursor.sequence or cursor.made != extent.made:
            await self.progress_to(start)
            await self._save_cursor()
        await self.progress_to(start)

    async def _start_after(self, cursor: Cursor, extent: Extent) -> int:
        """The sequence behind which folding goes on; says so when that is not simply the cursor's."""
        anew = cursor.made not in ("", extent.made)
        if anew or cursor.sequence > extent.last:
            back_to = 0 if anew else extent.last
            await self._report(cursor, extent, f"{self._spec.stream} was made anew, or restored from an older copy")
            # States count sequences of a stream that is no more: their content stays, and every message is new to them.
            for key, folded in sorted(self._folded.items()):
                if folded.applied_seq > back_to:
                    self._folded[key] = Folded(back_to, folded.state)
                    await self._store(key)
            return max(back_to, extent.first - 1)
        missing = extent.first - cursor.sequence - 1
        if cursor.sequence == 0 or missing <= 0:
            return cursor.sequence  # a new projection begins with what there is
        self._lost += missing
        self._gone.inc(missing)
        gone = (
            f"{self._spec.stream} begins at {extent.first}: up to {missing} messages after {cursor.sequence} are gone"
        )
        await self._report(cursor, extent, gone)
        return extent.first - 1

    async def _report(self, cursor: Cursor, extent: Extent, what: str) -> None:
        log.error("projection lacks messages", projection=self._name, reason=what)
        if self._on_gap is not None:
            gap = Gap(self._name, what, (cursor.made, cursor.sequence, extent.made, extent.first), self._bus.now())
            await self._bus.publish(self._on_gap(gap))
        self._reported_until = time.monotonic() + REPORT_S

    def fold(self, received: Received[Message]) -> None:
        """Fold a message, unless its place is folded already."""
        if received.sequence <= self._applied:
            return
        try:
            key = self._key_of(received)
            before = self._folded.get(key) if key is not None else None
            if key is not None and self._fold_one(key, received):
                self._changed.setdefault(key, before)
        except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all that follow it
            self.skip(received.sequence, error)

    async def save(self, *, after_s: float = 0.0) -> None:
        """Store the states that changed, then the cursor: a crash in between folds nothing twice.

        Nothing where that was done less than `after_s` ago, or there is nothing new since.
        """
        if not after_s or (self._applied != self._saved and time.monotonic() - self._saved_at >= after_s):
            await self._store_changed()
            await self._save_cursor()

    async def _store_changed(self) -> None:
        for key in sorted(self._changed):
            before = self._changed[key]
            try:
                await self._store(key)
            except PASSING:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: a state that cannot be stored stops no other
                self.skip(self._folded.pop(key).applied_seq, error)
                if before is not None:
                    self._folded[key] = before
        if self._changed:
            self._changed.clear()
            self._stored_marks = tuple(self._recent)

    def skip(self, sequence: int, error: Exception) -> None:
        """Go on without a message, or a state, that cannot be folded."""
        self._skipped.inc()
        described = failure(error, self._bus.contracts.mask)
        log.error("cannot be folded", projection=self._name, sequence=sequence, **described)

    async def skip_ahead(self, reader: OrderedReader) -> bool:
        """Move the cursor over messages that are none of ours. False when the stream is another one by now."""
        if time.monotonic() - self._looked_at < SKIP_S:
            return True
        self._looked_at = time.monotonic()
        extent = await self._bus.extent(self._spec.stream)
        if extent.made != self._made:
            return False
        if extent.last > self._applied and reader.is_at_end(await reader.state()):
            await self.progress_to(extent.last)
        return True

    async def progress_to(self, sequence: int) -> None:
        """What waits for a sequence up to here goes on."""
        async with self._progress:
            self._applied = sequence
            self._progress.notify_all()

    async def _save_cursor(self) -> None:
        """Raises `Conflict` where the stored one is gone: all its states are gone too."""
        key = f"cursor-{self._name}"
        cursor = Cursor(self._applied, self._made, self._lost, b"".join(self._recent))
        try:
            if self._cursor_revision is None:
                self._cursor_revision = await self._cursors.create(key, cursor)
            else:
                self._cursor_revision = await self._cursors.update(key, cursor, self._cursor_revision)
        except Conflict:
            if await self._cursors.get(key) is None:
                raise
            self._cursor_revision = await self._cursors.put(key, cursor)  # a second process folds the same
        self._saved, self._saved_at = self._applied, time.monotonic()

    def _fold_one(self, key: str, received: Received[Message]) -> bool:
        mark = blake2b(received.identity.encode(errors="replace"), digest_size=MARK_BYTES).digest()
        if mark in self._known:
            return False
        folded = self._folded.get(key)
        if folded is None or folded.applied_seq < received.sequence:
            state = self._step(folded.state if folded else None, received)
            self._folded[key] = Folded(received.sequence, state)
            self._remember(mark)
            return True
        self._remember(mark)
        return False

    def _remember(self, mark: bytes) -> None:
        if len(self._recent) == REMEMBERED:
            self._known.discard(self._recent[0])
        self._recent.append(mark)
        self._known.add(mark)

    async def _store(self, key: str) -> None:
        name, folded = f"{self._name}.{key}", self._folded[key]
        if key in self._revisions:
            self._revisions[key] = await self._states.update(name, folded, self._revisions[key])
        else:
            self._revisions[key] = await self._states.create(name, folded)


class Together:
    """Several projections of the same topics by one reader: each message is delivered and read once.

    Each has its own states and its own place, and skips what lies before it. One whose states cannot be read holds up
    no other: all begin again after a while, each from its place, and it is tried again.
    """

    def __init__(self, bus: Bus, *projections: Projection[Any]) -> None:
        """Raises `ConfigError` for projections of different topics."""
        self._bus = bus
        self._projections = projections
        self._spec = projections[0].spec
        if any(each.spec.topics != self._spec.topics for each in projections):
            raise ConfigError(f"what is folded together with {self._spec.name} is of other topics")
        self._stopping = False

    async def run(self) -> None:
        """Fold until stopped; whatever breaks, read the stored states again and go on from there."""
        while not self._stopping:
            try:
                await self._follow()
            except (*PASSING, Unreadable) as error:
                log.warning("projection starts over", projection=self._spec.name, reason=repr(error))
                await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """Store what is folded and return from `run`."""
        self._stopping = True

    async def _follow(self) -> None:
        loaded = await self._load()
        deadline = time.monotonic() + (SKIP_S if len(loaded) < len(self._projections) else math.inf)
        filters = self._bus.contracts.filters(self._spec.topics)
        reader = OrderedReader(self._bus, self._spec.stream, filters, start=min(each.applied for each in loaded) + 1)
        try:
            await reader.open()
            while not self._stopping and time.monotonic() < deadline:
                batch = await reader.next(wait_s=0.5)
                if batch:
                    await self._fold(loaded, batch)
                elif not all([await each.skip_ahead(reader) for each in loaded]):
                    break
                for each in loaded:
                    await each.save(after_s=STORED_S)
            for each in loaded:
                await each.save()
        finally:
            await reader.close()

    async def _load(self) -> list[Projection[Any]]:
        """Those whose states can be read. Raises `Unreadable` where there is none."""
        loaded: list[Projection[Any]] = []
        for each in self._projections:
            try:
                await each.load()
                loaded.append(each)
            except Unreadable as error:
                if each is self._projections[-1] and not loaded:
                    raise
                log.warning("projection starts over", projection=each.spec.name, reason=repr(error))
        return loaded

    async def _fold(self, loaded: Sequence[Projection[Any]], batch: Sequence[Msg]) -> None:
        async for message in with_pauses(batch):
            try:
                received, _ = self._bus.read(message, self._spec.topics)
            except ContractError:
                continue  # the consumer loop has made it a dead letter; a fold skips it, every time alike
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all that follow it
                for each in loaded:
                    each.skip(message.metadata.sequence.stream, error)
                continue
            for each in loaded:
                each.fold(received)
        for each in loaded:
            await each.progress_to(max(each.applied, batch[-1].metadata.sequence.stream))
