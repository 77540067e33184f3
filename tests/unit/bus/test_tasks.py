"""`end` waits until a task has ended: it cancels again when a cancel got lost."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.bus.tasks import UntilStopped, end
from tests.support.running import forgetful


async def begun() -> asyncio.Task[None]:
    task = asyncio.create_task(forgetful())
    await asyncio.sleep(0)
    return task


async def test_a_cancel_that_got_lost_is_asked_for_again() -> None:
    task = await begun()
    async with asyncio.timeout(20):
        await end(task, again_s=0.05)
    assert task.cancelled()


async def test_a_request_that_is_answered_as_it_is_cancelled_ends_all_the_same() -> None:
    answer = asyncio.get_running_loop().create_future()

    async def requests() -> None:
        await asyncio.wait_for(answer, 60)
        await asyncio.Event().wait()

    task = asyncio.create_task(requests())
    await asyncio.sleep(0)
    answer.set_result(None)
    async with asyncio.timeout(20):
        await end(task, again_s=0.05)
    assert task.cancelled()


async def test_ending_a_task_while_being_cancelled_returns_once_it_has_ended() -> None:
    task = await begun()
    ending = asyncio.create_task(end(task, again_s=0.05))
    await asyncio.sleep(0)
    ending.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({ending})
    assert (ending.cancelled(), task.cancelled()) == (True, True)


async def test_the_error_of_a_failed_task_stays_with_it() -> None:
    async def fail() -> None:
        raise ValueError("its own")

    failed = asyncio.create_task(fail())
    await asyncio.wait({failed})
    await end(failed, None)
    with pytest.raises(ValueError, match="its own"):
        failed.result()


class Endless:
    """Work without an end, which says how far it has come."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.mark.parametrize("early", [False, True])
async def test_work_goes_on_until_it_is_stopped(early: bool) -> None:
    endless, component = Endless(), UntilStopped()
    if early:
        component.stop()
    running = asyncio.create_task(component.run(endless.work()))
    if not early:
        await endless.begun.wait()
        assert not running.done()
        component.stop()
    await running
    assert endless.ended.is_set() == endless.begun.is_set()


async def test_work_that_fails_ends_the_run_with_its_error() -> None:
    async def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await UntilStopped().run(failing())


async def test_work_ends_with_a_run_that_is_cancelled() -> None:
    endless = Endless()
    running = asyncio.create_task(UntilStopped().run(endless.work()))
    await endless.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert endless.ended.is_set()
