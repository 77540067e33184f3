"""Tasks as they are when a cancel gets lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def forgetful() -> None:
    """Never ends by itself, and loses its first cancel, as a request of nats-py may before Python 3.12."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()
