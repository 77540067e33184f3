"""The audit log of a program: its acts, each in the broker before it is done, in a chain that shows later changes.

    async with audit.act(Act("promote", by, role="support")):  # raises `Unavailable`, and does nothing, unless stored
        ...                                                    # an error is noted in a further entry
    audit.note(Act("get_trajectory", by, objects=[run]))       # a read: goes on where the log cannot be written

Several processes of a program write one chain: see `bus.appending`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog
from prometheus_client import Counter

from ratchet.bus.appending import append, newest
from ratchet.bus.connection import Bus
from ratchet.bus.message import decode
from ratchet.core.contract.audit import LONGEST, MOST, AuditEntry
from ratchet.core.errors import Conflict, RatchetError, Unavailable
from ratchet.core.rules.access import Caller
from ratchet.core.rules.hash_chain import seal
from ratchet.core.service.problems import http_error

log = structlog.get_logger()

UNRECORDED = Counter("ratchet_audit_unrecorded_total", "Reads, and urgent acts, that the audit log could not take.")
WRITE_S = 5.0
"""How long an act waits for its entry."""
FLUSH_S, AGAIN_S = 1.0, 60.0
"""How soon a read is written; and reads that are alike but for their objects, after the first one: once in so long."""
MOST_READS, HOUR_S = 60, 3600.0
"""Entries that the reads of one key may take in an hour: with 50 ids each, a fifth of the stream in its 30 days."""
HEAD_S = 60.0
"""How often the newest entry is signed."""
TURNS = 32
"""How often an entry is tried again because another process was faster: each time one of them comes forward."""


class By(NamedTuple):
    """Who acts."""

    actor: str
    key_id: str | None = None


class Act(NamedTuple):
    """What is done, by whom, and to what."""

    name: str
    by: By
    role: str | None = None
    objects: Sequence[str] = ()
    """Ids, and nothing of what is in them."""


def by_caller(caller: Caller, declared: str | None = None) -> By:
    """The caller of a request; `declared`: whom it says that it acts for."""
    return By(caller.actor(declared), caller.key_id)


class _Tail(NamedTuple):
    """The end of the chain, as this process knows it."""

    sequence: int
    number: int
    hash: str | None


_BEGIN = _Tail(0, 0, None)


@dataclass(slots=True)
class _Reads:
    """Reads that are alike but for their objects, and not written yet."""

    count: int = 0
    objects: dict[str, None] = field(default_factory=dict[str, None])
    written_at: float | None = None


class AuditLog:
    """A component: writes what was noted, and has the chain's end signed."""

    def __init__(
        self,
        bus: Bus,
        service: str,
        sign: Callable[[AuditEntry], Awaitable[None]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sign`: signs an entry as the chain's end, where others than the broker keep it; raises `Unavailable`."""
        self.service = service
        self._bus = bus
        self._sign = sign
        self._monotonic = monotonic
        self._tail: _Tail | None = None
        self._writing = asyncio.Lock()
        self._reads: dict[Act, _Reads] = {}
        self._hour, self._taken = monotonic(), Tally[str]()
        """When it began, and how many entries each key's reads have taken in it."""
        self._unrecorded = 0
        self._newest: AuditEntry | None = None
        """That is not signed."""
        self._faults: dict[str, str] = {}
        self._stopping = asyncio.Event()

    async def record(
        self,
        act: Act,
        *,
        outcome: str = "done",
        count: int | None = None,
        of: AuditEntry | None = None,
        status: int | None = None,
    ) -> AuditEntry:
        """Write an entry, and return once the broker has it. Raises `Unavailable`."""
        draft = AuditEntry(
            service=self.service,
            number=1,
            at=self._bus.now(),
            act=act.name,
            outcome=outcome,
            actor=act.by.actor[:LONGEST] or "unknown",
            key_id=act.by.key_id,
            role=act.role,
            objects=[text[:LONGEST] for text in act.objects[:MOST] if text] or None,
            count=count if count is not None else len(act.objects) if len(act.objects) > MOST else None,
            of=of.number if of is not None else None,
            status=status,
        )
        try:
            async with asyncio.timeout(WRITE_S), self._writing:
                entry = await self._append(draft)
        except (RatchetError, TimeoutError) as error:
            reason = str(error) or f"the broker did not take it within {WRITE_S:g} s"
            self._faults["write"] = f"the audit log cannot be written: {reason}"
            raise Unavailable(f"{self._faults['write']}; what changes something is refused until it can be") from error
        self._faults.pop("write", None)
        self._newest = entry
        return entry

    @asynccontextmanager
    async def act(self, act: Act, *, urgent: bool = False) -> AsyncIterator[None]:
        """Around what changes something. Raises `Unavailable` before it where it cannot be recorded, unless it is
        `urgent`: then it is counted."""
        entry = None
        try:
            entry = await self.record(act, outcome="asked")
        except Unavailable as error:
            if not urgent:
                raise
            self._count(act, 1, error)
        try:
            yield
        except Exception as error:
            if entry is None:
                raise
            status = http_error(error).status if isinstance(error, RatchetError) else 500
            await self._record_failure(act, entry, status)
            raise

    async def _record_failure(self, act: Act, entry: AuditEntry, status: int) -> None:
        """Without it the log says more than was done, which is the safe side."""
        try:
            await self.record(act, outcome="failed", of=entry, status=status)
        except Unavailable as error:
            log.warning("a failed act stands in the audit log as asked for", number=entry.number, reason=str(error))

    def note(self, act: Act) -> None:
        """Have a read written soon, or anything that must go on also where the log cannot be written.

        The first one is written within a second; then those that are alike (act, who, role) in one entry a minute. What
        a key reads beyond its entries of an hour waits for the next one, without the roles that it was about: the
        stream must not be full of reads where something is to be changed.
        """
        alike, written_at = act._replace(objects=()), None
        if alike not in self._reads and not self._takes_entry(act.by):
            alike, written_at = Act(act.name, act.by), self._monotonic()
        reads = self._reads.setdefault(alike, _Reads(written_at=written_at))
        reads.count += 1
        if len(reads.objects) < MOST:
            reads.objects |= dict.fromkeys(act.objects)

    async def run(self) -> None:
        """Write and sign until stopped."""
        signed_at = self._monotonic()
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(FLUSH_S):
                    await self._stopping.wait()
            except TimeoutError:
                await self.flush(AGAIN_S)
            if self._monotonic() - signed_at >= HEAD_S:
                signed_at = self._monotonic()
                await self.sign()
        await self.close()

    async def stop(self) -> None:
        """Return from `run`."""
        self._stopping.set()

    async def close(self) -> None:
        """Write and sign what is left."""
        await self.flush()
        await self.sign()

    async def check(self) -> str | None:
        """A note: None while the log is written and signed, else what fails."""
        unrecorded = [f"{self._unrecorded} reads or urgent acts are not recorded"] if self._unrecorded else []
        return "; ".join([*self._faults.values(), *unrecorded]) or None

    async def flush(self, again_s: float = 0.0) -> None:
        """Write what was noted, but what is alike to what was written less than `again_s` ago."""
        now = self._monotonic()
        if now - self._hour >= HOUR_S:
            self._hour, self._taken = now, Tally()
        for alike, reads in [*self._reads.items()]:
            if reads.written_at is not None and now - reads.written_at < again_s:
                continue
            if not reads.count:
                del self._reads[alike]
                continue
            if again_s and reads.written_at is not None and not self._takes_entry(alike.by):
                continue
            self._reads[alike] = _Reads(written_at=now)
            await self._write(alike, reads)
        if self._unrecorded and "write" not in self._faults:
            await self._write_unrecorded()

    def _takes_entry(self, by: By) -> bool:
        """Whether the reads of a key may take a further entry in this hour: then they have taken it."""
        name = by.key_id or by.actor
        self._taken[name] += 1
        return self._taken[name] <= MOST_READS

    async def _write(self, alike: Act, reads: _Reads) -> None:
        objects = [*reads.objects]
        count = reads.count if reads.count != max(1, len(objects)) else None
        try:
            await self.record(alike._replace(objects=objects), count=count)
        except Unavailable as error:
            self._count(alike, reads.count, error)

    def _count(self, act: Act, count: int, error: Unavailable) -> None:
        self._unrecorded += count
        UNRECORDED.inc(count)
        log.warning("not recorded", act=act.name, count=count, reason=str(error))

    async def _write_unrecorded(self) -> None:
        count = self._unrecorded
        try:
            await self.record(Act("unrecorded", By(self.service)), outcome="unrecorded", count=count)
        except Unavailable:
            return
        self._unrecorded -= count

    async def sign(self) -> None:
        """Have the newest entry of this process signed, if none has signed it."""
        entry, self._newest = self._newest, None
        if entry is None or self._sign is None:
            return
        try:
            await self._sign(entry)
            self._faults.pop("sign", None)
        except RatchetError as error:
            self._newest = self._newest or entry
            self._faults["sign"] = f"the head of the audit log is not signed: {error}"
            log.warning("head of the audit log not signed", reason=str(error))

    async def _append(self, draft: AuditEntry) -> AuditEntry:
        for _ in range(TURNS):
            tail, self._tail = self._tail, None  # unknown until the broker has answered
            tail = tail or await self._read_tail(draft.subject)
            entry = seal(msgspec.structs.replace(draft, number=tail.number + 1), tail.hash)
            try:
                sequence = await append(self._bus, self._bus.seal(entry), tail.sequence)
            except Conflict:
                continue
            self._tail = _Tail(sequence, entry.number, entry.hash)
            return entry
        raise Unavailable(f"other processes of {self.service} write all the time")

    async def _read_tail(self, subject: str) -> _Tail:
        """What stands at the end; behind what is no entry a new chain begins, as `ratchet audit verify` says."""
        last = await newest(self._bus, subject)
        if last is None:
            return _BEGIN
        try:
            entry = decode(last.body, AuditEntry)
        except msgspec.DecodeError:
            log.error("the end of the audit log is no entry", sequence=last.sequence)
            return _Tail(last.sequence, 0, None)
        return _Tail(last.sequence, entry.number, entry.hash)
