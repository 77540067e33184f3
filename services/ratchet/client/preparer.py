"""Redacts and checks what was recorded, on a thread of its own: the agent only pays for a queue's `put`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import structlog

from ratchet.bus.outbox import Outbox
from ratchet.contract import Message, encode
from ratchet.rules.redaction import Redactor, redact_message
from ratchet.service.logs import failure

log = structlog.get_logger()


class Preparer:
    """A queue in front of the outbox, bounded in messages and in the bytes of their JSON.

    Fails closed: what cannot be redacted, or is invalid, is dropped.
    """

    def __init__(self, outbox: Outbox, limit: int, limit_bytes: int) -> None:
        self.overflowed = 0
        self.invalid = 0
        self.redactions: Counter[str] = Counter()
        self._outbox = outbox
        self._redactor = Redactor()
        self._queue: queue.Queue[tuple[Message, int] | None] = queue.Queue(limit)
        self._limit_bytes = limit_bytes
        self._unfinished = 0
        self._unfinished_bytes = 0
        self._waiting: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._ending = False
        self._late = False
        self._thread = threading.Thread(target=self._work, name="ratchet-preparer", daemon=True)

    def start(self) -> None:
        """Begin to work on what is put."""
        self._thread.start()

    @property
    def pending(self) -> int:
        """Messages that have not reached the outbox yet."""
        return self._unfinished

    def put(self, message: Message) -> None:
        """Take a message, at once. A full queue, or a closed one, counts it as overflowed; one that is no JSON is
        invalid."""
        try:
            size = len(encode(message))
        except (ValueError, RecursionError, OverflowError, TypeError) as error:
            self._refuse(message, error)
            return
        with self._lock:
            full = self._unfinished_bytes > 0 and self._unfinished_bytes + size > self._limit_bytes
            if full or self._ending:
                self.overflowed += 1
                return
            self._unfinished += 1
            self._unfinished_bytes += size
        try:
            self._queue.put_nowait((message, size))
        except queue.Full:
            self._done(size)
            self.overflowed += 1

    async def wait(self, deadline_s: float) -> bool:
        """Wait until everything that was put has reached the outbox; False when the deadline came first.

        Uses no executor: while the interpreter exits there is none.
        """
        idle, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(idle.set)

        self._when_idle(wake)
        try:
            async with asyncio.timeout(deadline_s):
                await idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, deadline_s: float) -> None:
        """Finish what was put within the deadline; the rest is counted as overflowed."""
        self._ending = True
        if not await self.wait(deadline_s):
            self._late = True
            self.overflowed += self._discard()
        self._queue.put_nowait(None)

    def _work(self) -> None:
        while (taken := self._queue.get()) is not None:
            message, size = taken
            try:
                self._pass_on(message)
            except Exception as error:  # noqa: BLE001 - the boundary: one bad message must not end the thread
                self._refuse(message, error)
            finally:
                self._done(size)

    def _refuse(self, message: Message, error: Exception) -> None:
        self.invalid += 1
        log.error("not recorded", topic=message.TOPIC, **failure(error))

    def _pass_on(self, message: Message) -> None:
        redacted, counts = redact_message(self._redactor, message)
        self.redactions.update(counts)
        if self._late:
            self.overflowed += 1
        else:
            self._outbox.put(redacted)

    def _discard(self) -> int:
        """Empty the queue; returns how many there were."""
        count = 0
        try:
            while (taken := self._queue.get_nowait()) is not None:
                count += 1
                self._done(taken[1])
        except queue.Empty:
            return count
        return count

    def _done(self, size: int) -> None:
        with self._lock:
            self._unfinished -= 1
            self._unfinished_bytes -= size
            callbacks, self._waiting = (self._waiting, []) if self._unfinished == 0 else ([], self._waiting)
        for callback in callbacks:
            callback()

    def _when_idle(self, callback: Callable[[], object]) -> None:
        """Call back, from any thread, as soon as nothing is unfinished."""
        with self._lock:
            if self._unfinished:
                self._waiting.append(callback)
                return
        callback()
