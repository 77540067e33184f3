"""Recorder processes that die: the next one gets their jobs, and who hands jobs over notices nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
import uvloop

from ratchet.bus.testing import eventually
from ratchet.gateway.recorder_pool import RecorderProcess
from ratchet.gateway.recorder_process import EventJob, Recorded

JOB = EventJob("agent.rl.unknown.v1", b"{}")


async def killed_while_jobs_come(kills: int) -> tuple[int, list[Recorded | None]]:
    """How many jobs were handed over, and what became of them."""
    recorder, finished, submitted = RecorderProcess(1_000_000), list[Recorded | None](), 0
    running = asyncio.create_task(recorder.run())

    async def at_work() -> bool:
        return recorder.pid is not None

    async def all_finished() -> bool:
        return len(finished) == submitted

    for _ in range(kills):
        await eventually(at_work)
        pid = recorder.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while recorder.pid == pid:  # also between its end and the moment at which the pool has noticed that
            recorder.submit(JOB, finished.append)
            submitted += 1
            await asyncio.sleep(0)
    await eventually(all_finished)
    await recorder.stop()
    await running
    return submitted, finished


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_jobs_that_come_while_a_recorder_dies_are_recorded_by_the_next_one(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        submitted, finished = runner.run(killed_while_jobs_come(2))
    assert len(finished) == submitted > 0
    assert all(finished)
