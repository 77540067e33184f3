"""Publishing that never holds up the producer: a bounded queue in memory, a bounded spool on disk, one order.

While the broker answers, messages go straight out in batches. While it does not, they go to the spool, and so does
everything newer until the spool is drained: nothing overtakes, and nothing waits in memory for a drain.

A message passes these stages, and waits nowhere else:

| stage | where it waits | bound |
|---|---|---|
| `put` | checked and sealed by the caller's thread; then the queue | `queue_limit` messages and `queue_bytes` bytes |
| `_pump` | one batch in flight, in the `Publisher`s of its streams | `BATCH` messages and `BATCH_BYTES` bytes |
| `_keep_or_hold` | the spool, where that batch could not be published; the queue while that is full | both bounds |
| `_drain` | one batch of the spool in flight | as above |

What is lost is counted in `OutboxStats`. Work on a message that takes longer than sealing
(redacting it, for example) belongs before `put`, on a thread or in a process of its own, with a bound of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import Record, Sealer
from ratchet.bus.failures import failure
from ratchet.bus.message import Message
from ratchet.bus.spool import Spool
from ratchet.bus.tasks import end
from ratchet.core.errors import ContractError, NotPermitted, Rejected, Unavailable

log = structlog.get_logger()

BATCH = 256
"""Messages that are published, or spooled, together at most."""
BATCH_BYTES = 8 * 1024 * 1024
"""Bytes that are published, or spooled, together; a larger message goes alone."""
QUEUE_BYTES = 64 * 1024 * 1024
"""Bytes that wait in memory: what a busy producer makes in the seconds that one batch may take."""
RETRY_S = 0.5
"""Pause before the spool is tried again."""
RECONNECT_S = 5.0
"""Pause after a `connect` that failed."""
ORPHANS_S = 60.0
"""How often spools are looked for whose processes came back no more."""


@dataclass(slots=True)
class OutboxStats:
    """What became of the messages that were put in."""

    published: int = 0
    overflowed: int = 0
    """Lost: the queue in memory was full, or there was no room on disk at the end."""
    refused: int = 0
    """Lost: the broker will never take them (too large)."""


class Outbox:
    """`put` from any thread, at any time; `run` publishes. What cannot be published by the end stays in the spool."""

    def __init__(  # noqa: PLR0913 - keywords, each with a default
        self,
        contracts: Contracts,
        source: str,
        spool: Spool,
        *,
        queue_limit: int = 10_000,
        queue_bytes: int = QUEUE_BYTES,
        now: Callable[[], datetime] = utc_now,
        rules: str = "",
    ) -> None:
        """`rules`: digest of the rules by which what is put in was redacted."""
        self.stats = OutboxStats()
        self._contracts = contracts
        self._sealer = Sealer(contracts, source, now, rules)
        self._spool = spool
        self._limit = queue_limit
        self._limit_bytes = queue_bytes
        self._ahead = tuple(f"{topic.name}." for topic in contracts.topics.values() if topic.ahead)
        self._queue: deque[Record] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._in_flight: Sequence[Record] = ()
        self._bus: Bus | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._draining: asyncio.Task[bool] | None = None
        self._orphans_due = 0.0
        self._stopping = False

    @property
    def pending(self) -> int:
        """Messages that no stream has stored yet."""
        return len(self._queue) + len(self._in_flight) + self._spool.pending

    def put(self, message: Message) -> bool:
        """Queue one message; False, and counted as overflowed, when the queue is full. Raises `InvalidMessage`.

        Full is a queue of `queue_limit` messages, or of `queue_bytes` bytes: the last one may go beyond.
        """
        if self._is_full():
            self.stats.overflowed += 1
            return False
        return self.put_sealed(self.seal(message))

    def seal(self, message: Message) -> Record:
        """Check a message, and make what `put_sealed` takes. Raises `InvalidMessage`."""
        return self._sealer.seal(message)

    def put_sealed(self, record: Record) -> bool:
        """Queue a message that was checked and sealed; False, and counted as overflowed, when the queue is full."""
        if self._is_full():
            self.stats.overflowed += 1
            return False
        with self._lock:
            self._queue.append(record)
            self._queued_bytes += record.size
        if self._loop is not None and not self._wake.is_set():  # once set, `run` has yet to look at the queue
            with suppress(RuntimeError):  # the loop is closed: what is queued goes to the spool on the way out
                self._loop.call_soon_threadsafe(self._wake.set)
        return True

    async def run(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        """Publish until stopped. `connect` may take as long as it likes: meanwhile messages go to the spool."""
        self._loop = asyncio.get_running_loop()

        async def connected() -> None:
            async def once() -> None:
                self._bus = await connect()

            while True:
                if await self._safely(once()):
                    return self._wake.set()
                await asyncio.sleep(RECONNECT_S)

        connecting = asyncio.create_task(connected())
        try:
            while not self._stopping:
                await self._pump_safely()
                if not self.pending:
                    self._idle.set()
                with suppress(TimeoutError):  # then it is time to try the spool again, or to look for orphans
                    async with asyncio.timeout(RETRY_S if self.pending else ORPHANS_S):
                        await self._wake.wait()
                self._wake.clear()
            await self._pump_safely()
            if self._draining is not None:
                await asyncio.wait({self._draining})
        finally:
            try:
                await end(connecting, self._draining)
            finally:
                self.keep_rest()

    def keep_rest(self) -> None:
        """Keep in the spool what is queued and on its way, where no `run` does that any more."""
        before = self.stats.overflowed
        while self._in_flight or self._queue:
            self._keep(self._in_flight or self._take())
            self._in_flight = ()
        if lost := self.stats.overflowed - before:
            log.error("not published, and no room on disk", messages=lost)

    async def stop(self) -> None:
        """Publish what is queued, once, and return from `run`."""
        self._stopping = True
        self._wake.set()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until nothing is pending; False when the deadline came first."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.pending:
                    self._idle.clear()
                    self._wake.set()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _safely(self, work: Awaitable[object]) -> bool:
        """The boundary: whatever goes wrong, publishing goes on later. Returns whether all went well."""
        try:
            await work
        except Unavailable as error:
            log.warning("not published yet", pending=self.pending, reason=str(error))
        except Exception as error:  # noqa: BLE001 - see above
            log.error("publishing failed, will try again", **failure(error, self._contracts.mask))
        else:
            return True
        return False

    async def _pump_safely(self) -> None:
        if not await self._safely(self._pump()):
            await asyncio.sleep(RETRY_S)

    async def _pump(self) -> None:
        """Move everything that is queued: to the broker, or behind what the spool still holds."""
        while self._queue:
            batch = self._take()
            if self._is_connected() and not self._spool.pending:
                await self._publish_or_keep(batch)
            elif not self._keep_or_hold(batch):
                break
        due = self._spool.pending or self._orphans_due <= asyncio.get_running_loop().time()
        if due and self._is_connected() and (self._draining is None or self._draining.done()):
            self._draining = asyncio.create_task(self._safely(self._drain()))

    async def _drain(self) -> None:
        """Publish the spool, as far as that goes now, and those that no process holds any more."""
        await self._spool.drain(self._publish, BATCH, BATCH_BYTES)
        now = asyncio.get_running_loop().time()
        if self._orphans_due <= now:
            self._orphans_due = now + ORPHANS_S
            with closing(self._spool.orphans()) as orphans:
                for orphan in orphans:
                    drained = await orphan.drain(self._publish, BATCH, BATCH_BYTES)
                    log.info("spool of a process that is gone", directory=str(orphan.directory), published=drained)
        self._wake.set()

    def _is_full(self) -> bool:
        return len(self._queue) >= self._limit or self._queued_bytes >= self._limit_bytes

    def _take(self) -> list[Record]:
        """The next batch of the queue, which is on its way from now on.

        An interrupt (Ctrl-C) may end any of these lines: a record is then both in the queue and on its way, never in
        neither, and its id makes two of it one.
        """
        batch: list[Record] = []
        size = 0
        with self._lock:
            for record in self._queue:
                if len(batch) == BATCH or (batch and size + record.size > BATCH_BYTES):
                    break
                batch.append(record)
                size += record.size
            self._in_flight = batch
            for _ in batch:
                self._queue.popleft()
            self._queued_bytes -= size
        return batch

    async def _publish_or_keep(self, batch: Sequence[Record]) -> None:
        """Publish, or keep what may not have been published: also when this task is cancelled in the middle."""
        try:
            await self._publish(batch)
        except BaseException as error:
            kept = self._keep_or_hold(self._in_flight)  # none, where `keep_rest` was faster
            if not kept or not isinstance(error, Unavailable):
                raise
            log.warning("broker away, spooling", reason=str(error))
        else:
            self._in_flight = ()

    async def _publish(self, batch: Sequence[Record]) -> None:
        """Publish in order; a message that the broker will never take is counted, not retried.

        So is one that this program may not send: those that wait behind it must not wait for other permissions.
        """
        assert self._bus is not None  # noqa: S101 - only called while connected
        by_turn: dict[bool, list[Record]] = {True: [], False: []}
        for record in batch:
            by_turn[f"{record.subject}.".startswith(self._ahead)].append(record)
        if by_turn[True] and by_turn[False]:
            await self._publish(by_turn[True])
            batch = by_turn[False]
        results: list[object] = []
        records: list[Record] = []
        for record in batch:  # all of them before the first is sent: none overtakes one with a large body
            try:
                records.append(await self._bus.refer(record))
            except Rejected as error:
                results.append(error)
        results += await asyncio.gather(*map(self._bus.publish_record, records), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Rejected | ContractError | NotPermitted)]
        for result in results:
            if isinstance(result, BaseException) and result not in refused:
                raise result
        for error in refused:
            log.error("message refused", reason=str(error))
        self.stats.refused += len(refused)
        self.stats.published += len(batch) - len(refused)

    def _keep_or_hold(self, batch: Sequence[Record]) -> bool:
        """Keep a batch on disk, and hold in memory, first in line, what the disk does not take: whether it took all."""
        kept = next((place for place, record in enumerate(batch) if not self._spool.append(record)), len(batch))
        held = batch[kept:]
        with self._lock:
            self._queue.extendleft(reversed(held))
            self._queued_bytes += sum(record.size for record in held)
        self._in_flight = ()
        return not held

    def _keep(self, batch: Sequence[Record]) -> None:
        kept = [self._spool.append(record) for record in batch]
        self.stats.overflowed += kept.count(False)

    def _is_connected(self) -> bool:
        return self._bus is not None and self._bus.is_connected
