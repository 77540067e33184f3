"""Which of several processes of a service leads: one key in the broker, compare-and-set, and no wall clock.

The leader writes its key again every beat. A standby measures with its own monotonic clock for how long the key has not
changed; after `takeover_s` it replaces the key by compare-and-set, so that one standby wins. No instant is compared
between hosts.

A leader that was frozen or cut off may learn late that it was replaced. Leading is therefore not enough to write:

1. every write of a leader is a compare-and-set on the revision that it read;
2. between reading and writing it asks the broker whether it still leads (`confirm`);
3. a new leader writes every record anew, with its own term, before it acts on it (the deployer: `RolloutStore.load`).

A write that was confirmed and then delayed beyond the takeover either meets a changed revision and fails, or lands
where the new leader has not written yet: then it follows from the last decision of the record that the new leader took
over, and the new leader would write the same.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import Gauge

from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import Value
from ratchet.bus.tasks import end
from ratchet.core.errors import Conflict, Unavailable, Unreadable
from ratchet.core.service.runtime import Component

log = structlog.get_logger()

BEATS = 5
"""Beats of a leader within the time after which a standby takes over."""
TRUSTED = 0.8
"""Share of that time for which a leader that could not renew its key still believes that it leads."""


class NotLeading(Unavailable):
    """Another process leads, or for now none of them does."""


@dataclass(frozen=True, slots=True)
class Election:
    """What is elected: one leader of a service's processes."""

    key: str
    """In a bucket of the service; where that has keys of roles: their names have no dot."""
    holder: str
    """A word for who may lead, such as `deployer`."""
    leading: Gauge
    """1 while this process leads."""


class Leader(Value, frozen=True, kw_only=True):
    """Who leads: the value of an election's key."""

    holder: str
    """Id of the process; empty once it gave the lead back."""
    url: str
    """Its control API."""
    term: int
    """Grows with every change of leader."""
    beat: int
    """Grows with every renewal."""


class Lead(Protocol):
    """Permission to write."""

    @property
    def term(self) -> int:
        """The term in which this process leads. Raises `NotLeading`."""
        ...

    async def confirm(self) -> None:
        """Ask the broker. Raises `NotLeading`, or `Unavailable` when the broker does not answer."""
        ...


class Leadership:
    """This process's part in the election: a component, and the permission to write."""

    def __init__(
        self,
        election: Election,
        bucket: Bucket[Leader],
        url: str,
        takeover_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._election = election
        self._bucket = bucket
        self._url = url
        self._takeover_s = takeover_s
        self._monotonic = monotonic
        self._me = uuid.uuid4().hex
        self._term: int | None = None
        self._renewed_at = 0.0
        self._seen: tuple[int, float] | None = None
        """The key's revision, and when it was first seen, while another process leads."""
        self._known: Leader | None = None
        self._stopping = asyncio.Event()
        self.gained = asyncio.Event()
        """Set while this process leads."""
        self.lost = asyncio.Event()
        """Set while it does not."""
        self.lost.set()

    @property
    def leading(self) -> bool:
        """Whether this process believes that it leads."""
        fresh = self._monotonic() - self._renewed_at < TRUSTED * self._takeover_s
        return self._term is not None and fresh

    @property
    def term(self) -> int:
        """See `Lead`."""
        if self._term is None:
            raise NotLeading(self.refusal)
        return self._term

    @property
    def refusal(self) -> str:
        """Why this process refuses an order, and where to send it."""
        if (leader := self._other) is None:
            return f"no {self._election.holder} leads for now: try again in a few seconds"
        return f"this {self._election.holder} is a standby: send it to the one that leads, {leader.url}"

    @property
    def _other(self) -> Leader | None:
        """Who leads instead; None where it is overdue, or was this process itself, maybe before it was started anew."""
        known, seen = self._known, self._seen
        if known is None or known.holder in ("", self._me) or known.url == self._url:
            return None
        is_overdue = seen is not None and self._monotonic() - seen[1] > self._takeover_s
        return None if is_overdue else known

    async def confirm(self) -> None:
        """See `Lead`."""
        term = self._term
        if term is not None and self.leading:
            entry = await self._read_key()
            if entry is not None and (entry.value.holder, entry.value.term) == (self._me, term):
                return
            self._known = entry.value if entry else None
            self._step_down(f"another {self._election.holder} took over")
        raise NotLeading(self.refusal)

    async def check(self) -> str | None:
        """Readiness: a standby of a living leader is ready."""
        return None if self.leading or self._other is not None else f"no {self._election.holder} leads for now"

    async def run(self) -> None:
        """Take part until stopped; then give the lead back, so that a standby need not wait."""
        beat_s = self._takeover_s / BEATS
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(2 * beat_s):
                    await self.beat()
            except (Conflict, TimeoutError, Unavailable) as error:
                log.warning("leadership not renewed", reason=str(error) or type(error).__name__)
            if self._term is not None and not self.leading:
                self._step_down("it could not be renewed in time")
            with suppress(TimeoutError):
                async with asyncio.timeout(beat_s):
                    await self._stopping.wait()
        await self._give_back()

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def beat(self) -> None:
        """Renew the lead, or take it once its leader is overdue. Raises `Conflict` when another process was faster."""
        began = self._monotonic()
        entry = await self._read_key()
        self._known = entry.value if entry else None
        if entry is not None and entry.value.holder not in ("", self._me):
            if self._term is not None:
                self._step_down(f"another {self._election.holder} took over")
            if self._seen is None or self._seen[0] != entry.revision:
                self._seen = (entry.revision, began)
            if began - self._seen[1] < self._takeover_s:
                return
        await self._write_key(entry, began)

    async def _read_key(self) -> Entry[Leader] | None:
        """The key. One that cannot be read stands for an unknown leader, and is replaced once it is overdue.

        Its term is unknown too. Every term took a write, so none was higher than the revision.
        """
        try:
            return await self._bucket.get(self._election.key)
        except Unreadable as error:
            log.error("leader's key cannot be read", reason=str(error))
            return Entry(Leader(holder="unreadable", url="", term=error.revision, beat=0), error.revision)

    async def _write_key(self, entry: Entry[Leader] | None, began: float) -> None:
        """Write the key with the next beat: the same term for a leader that goes on, else the next one."""
        before = entry.value if entry else Leader(holder="", url="", term=0, beat=0)
        goes_on = before.holder == self._me and before.term == self._term
        term = before.term if goes_on else before.term + 1
        mine = Leader(holder=self._me, url=self._url, term=term, beat=before.beat + 1)
        if entry is None:
            await self._bucket.create(self._election.key, mine)
        else:
            await self._bucket.update(self._election.key, mine, entry.revision)
        self._known, self._seen, self._renewed_at = mine, None, began
        if not goes_on:
            self._step_down("a new term begins")
            self._term = term
            log.info("leads", term=term)
            self._election.leading.set(1)
            self.lost.clear()
            self.gained.set()

    def _step_down(self, why: str) -> None:
        if self._term is not None:
            log.warning("leads no longer", term=self._term, reason=why)
        self._term = None
        self._election.leading.set(0)
        self.gained.clear()
        self.lost.set()

    async def _give_back(self) -> None:
        term = self._term
        self._step_down("stopped")
        if term is None:
            return
        with suppress(Conflict, Unavailable):
            entry = await self._read_key()
            if entry is not None and entry.value.holder == self._me:
                freed = Leader(holder="", url="", term=term, beat=entry.value.beat + 1)
                await self._bucket.update(self._election.key, freed, entry.revision)


class WhileLeading:
    """Runs a component for as long as this process leads: a new one in every term."""

    def __init__(
        self, leadership: Leadership, build: Callable[[], Component], ended: Callable[[], None] = lambda: None
    ) -> None:
        """`ended`: called once a component has ended, such as to show no more what only a leader shows."""
        self._leadership = leadership
        self._build = build
        self._ended = ended
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until stopped. Raises the error of a component that ends by itself."""
        while not self._stopping.is_set():
            await _first(self._leadership.gained.wait, self._stopping.wait)
            if not self._stopping.is_set():
                await self._run_component()

    async def stop(self) -> None:
        """Return from `run`, once the component has stopped."""
        self._stopping.set()

    async def _run_component(self) -> None:
        component = self._build()
        working = asyncio.create_task(component.run())
        try:
            await _first(lambda: asyncio.wait({working}), self._leadership.lost.wait, self._stopping.wait)
            if not working.done():
                await component.stop()
            await working
        finally:
            await end(working)
            self._ended()


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
