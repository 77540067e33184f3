"""What keeps the streams, as a container's first process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ratchet.local.local_stack.bootstrap import until_sigterm


@pytest.mark.slow
async def test_work_ends_at_sigterm_although_a_cancel_is_dropped() -> None:
    asked = asyncio.Event()

    async def drop_a_cancel() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as `asyncio.wait_for` does when the answer comes together with it
            await asyncio.Event().wait()

    ending = asyncio.create_task(until_sigterm(drop_a_cancel()))
    await asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await ending
