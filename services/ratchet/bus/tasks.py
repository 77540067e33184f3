"""Ending the tasks that one has begun, work that goes on until it is stopped, and work that lets others work."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_S = 5.0
"""A task that lives on for so long is asked again. Longer than cleaning up takes: it would be broken off."""
SHARE_S = 0.005
"""For so long a task works through a batch before the loop serves others."""


async def with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a pause for others, readiness among them, whenever work on them has taken `SHARE_S`."""
    serve_at = time.perf_counter() + SHARE_S
    for item in items:
        if time.perf_counter() >= serve_at:
            await asyncio.sleep(0)
            serve_at = time.perf_counter() + SHARE_S
        yield item


async def end(*tasks: asyncio.Task[Any] | None, again_s: float = AGAIN_S) -> None:
    """Cancel the tasks and wait until the last of them has ended, whatever it ended with.

    A cancel is asked for again until it has worked: before Python 3.12 `asyncio.wait_for`, in which nats-py waits for
    every answer, drops the one that comes together with the answer. A caller that is cancelled here leaves afterwards:
    what must follow in any case belongs in a `finally`.
    """
    pending = {task for task in tasks if task is not None and not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=again_s)
        except asyncio.CancelledError as error:
            cancelled = error
        pending = {task for task in pending if not task.done()}
    if cancelled is not None:
        raise cancelled


def expire(scope: asyncio.Timeout | None) -> None:
    """End now what runs within the scope of a timeout; one that has ended, or is ending, stays as it is."""
    if scope is not None:
        with suppress(RuntimeError):
            scope.reschedule(asyncio.get_running_loop().time())


class UntilStopped:
    """Work that has no end of its own: what is behind `run` and `stop` of a service's component."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until `stop`, which cancels it. Raises what it raised before that."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        failed = None
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            failed = working.exception() if working.done() else None
        finally:
            await end(working, stopping)
        if failed is not None:
            raise failed

    def stop(self) -> None:
        """Have `run` return, also one that has not begun."""
        self._stopping.set()


class Lasting(ABC):
    """A service's component whose work has no end of its own."""

    def __init__(self) -> None:
        self._working = UntilStopped()

    async def run(self) -> None:
        """Work until stopped."""
        await self._working.run(self._work())

    async def stop(self) -> None:
        """Return from `run`."""
        self._working.stop()

    @abstractmethod
    async def _work(self) -> None:
        """What it does until it is stopped."""
