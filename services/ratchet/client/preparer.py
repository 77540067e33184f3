"""Redacts and checks recorded messages on a thread of its own: the agent pays for a `put` into a queue only."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from ratchet.bus.envelope import Record
from ratchet.bus.outbox import Outbox
from ratchet.client.leaving import Latch
from ratchet.client.opt_outs import OptOuts
from ratchet.core.contract import Message, OptOut, encode
from ratchet.core.rules.redaction import redact_message
from ratchet.core.service.logs import failure

log = structlog.get_logger()

checking = threading.RLock()
"""Held while a message is checked, and while the process forks: a child inherits the locks that libraries hold on other
threads at that moment (jsonschema-rs while it validates), and waits for them for ever."""
if sys.platform != "win32":
    os.register_at_fork(before=checking.acquire, after_in_parent=checking.release, after_in_child=checking.release)


class Preparer:
    """A queue in front of the outbox, bounded in messages and in the bytes of their JSON.

    Fails closed: a message that is invalid, or that cannot be redacted, is dropped.
    """

    def __init__(self, outbox: Outbox, opt_outs: OptOuts, limit: int, limit_bytes: int) -> None:
        self.overflowed = 0
        self.invalid = 0
        self.opted_out = 0
        self.redactions: Counter[str] = Counter()
        self._outbox = outbox
        self._opt_outs = opt_outs
        self._queue: queue.SimpleQueue[tuple[Message, int] | None] = queue.SimpleQueue()
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._unfinished = 0
        self._unfinished_bytes = 0
        self._when_idle: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._handing_on = threading.Lock()
        """Each message is either handed on or given up. Not `_lock`: the agent's own thread needs that one."""
        self._ending = False
        self._late = False
        self._thread = threading.Thread(target=self._work, name="ratchet-preparer", daemon=True)

    def start(self) -> None:
        """Begin to work on the queue, once."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    @property
    def pending(self) -> int:
        """Messages that have not reached the outbox yet."""
        return self._unfinished

    def put(self, message: Message) -> None:
        """Queue a message without waiting. It counts as overflowed if the queue is full or closed, as invalid if JSON
        has no form for it."""
        try:
            size = len(encode(message))
        except (ValueError, RecursionError, OverflowError, TypeError) as error:
            self._drop(message, error)
            return
        with self._lock:
            too_many_bytes = self._unfinished_bytes > 0 and self._unfinished_bytes + size > self._limit_bytes
            if self._ending or too_many_bytes or self._unfinished >= self._limit:
                self.overflowed += 1
                return
            self._unfinished += 1
            self._unfinished_bytes += size
        self._queue.put((message, size))

    async def wait(self, deadline_s: float) -> bool:
        """Wait until all queued messages have reached the outbox; False when the deadline came first.

        Uses no executor: while the interpreter exits there is none.
        """
        idle, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(idle.set)

        with self._lock:
            if not self._unfinished:
                return True
            self._when_idle.append(wake)
        try:
            async with asyncio.timeout(deadline_s):
                await idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, deadline_s: float) -> None:
        """Finish the queue within the deadline; the rest counts as overflowed."""
        self._ending = True
        await self.wait(deadline_s)
        self.finish(0)

    def finish(self, deadline_s: float) -> None:
        """The same without a loop: the caller waits, and does the work itself where there is no thread for it."""
        until = time.monotonic() + deadline_s
        self._ending = True
        self._opt_outs.stop_asking()  # the loop that would ask may be the caller's, which waits
        if self._thread.is_alive():
            self._idle().wait(deadline_s)
        else:
            with suppress(queue.Empty):
                while time.monotonic() < until and (queued := self._queue.get_nowait()) is not None:
                    self._prepare(*queued)
        with self._handing_on, self._lock:
            self._late = True
            lost, self._unfinished = self._unfinished, 0
            self.overflowed += lost
        self._queue.put(None)
        if lost:
            log.error("not recorded: no time was left", messages=lost)

    def _idle(self) -> Latch:
        """Opens once no message is unfinished."""
        idle = Latch()
        with self._lock:
            if self._unfinished:
                self._when_idle.append(idle.open)
            else:
                idle.open()
        return idle

    def _work(self) -> None:
        while (queued := self._queue.get()) is not None:
            if not self._late:
                self._prepare(*queued)

    def _prepare(self, message: Message, size: int) -> None:
        """Redact, check and hand on, unless someone whom it is about has opted out, or `finish` has given up and
        counted the message in the meantime."""
        prepared: tuple[Record, Mapping[str, int]] | Exception | None
        try:
            prepared = None if self._opt_outs.covers(message) else self._prepared(message)
        except Exception as error:  # noqa: BLE001 - the boundary: one bad message must not end the thread
            prepared = error
        with self._handing_on:
            if self._late:
                return
            if isinstance(prepared, Exception):
                self._drop(message, prepared)
            elif prepared is None:
                self.opted_out += 1
            else:
                self._outbox.put_sealed(prepared[0])
                self.redactions.update(prepared[1])
            with self._lock:
                self._unfinished -= 1
                self._unfinished_bytes -= size
                callbacks: list[Callable[[], object]] = []
                if self._unfinished == 0:
                    callbacks, self._when_idle = self._when_idle, []
            for callback in callbacks:
                callback()

    def _prepared(self, message: Message) -> tuple[Record, Mapping[str, int]]:
        with checking:
            if isinstance(message, OptOut):  # an id must stay the id that it is
                return self._outbox.seal(message), {}
            redacted, counts = redact_message(message)
            return self._outbox.seal(redacted), counts

    def _drop(self, message: Message, error: Exception) -> None:
        self.invalid += 1
        log.error("not recorded", topic=message.TOPIC, **failure(error))
