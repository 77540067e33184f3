"""Ending the tasks that one has begun."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 5.0
"""A task that lives on for so long is asked again. Longer than cleaning up takes: it would be broken off."""


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
