"""Waiting for conditions instead of for time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(probe: Callable[[], Awaitable[T | None]], deadline_s: float = 120.0) -> T:
    """Call `probe` until it returns something true; fails with its last answer after the deadline."""
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline_s
    while True:
        answer = await probe()
        if answer:
            return answer
        if loop.time() > until:
            raise AssertionError(f"did not become true within {deadline_s:g} s: last answer {answer!r}")
        await asyncio.sleep(0.02)
