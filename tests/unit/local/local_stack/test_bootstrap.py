"""What keeps the streams, as a container's first process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ratchet.local.local_stack.bootstrap import until_sigterm


@pytest.mark.slow
async def test_work_ends_at_sigterm_although_a_cancel_is_dropped() -> None:
    asked, cancels = asyncio.Event(), 0

    async def drop_a_cancel() -> None:
        nonlocal cancels
        asked.set()
        while cancels < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # `asyncio.wait_for` drops one when the answer comes together with it
                cancels += 1
        raise asyncio.CancelledError

    ending = asyncio.create_task(until_sigterm(drop_a_cancel()))
    await asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await ending
    assert cancels == 2
