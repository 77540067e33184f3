"""A task that is ended has ended: a cancel that got lost is asked for again."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.kernel.tasks import end


async def work_on(answer: asyncio.Future[None]) -> None:
    """As a nats request does: waits for an answer, and goes on with the next."""
    await asyncio.wait_for(answer, 60)
    await asyncio.sleep(3600)


async def waiting(answer: asyncio.Future[None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work_on(answer))
    await asyncio.sleep(0)
    return task


async def test_a_cancel_that_comes_together_with_an_answer_is_not_lost() -> None:
    answer = asyncio.get_running_loop().create_future()
    task = await waiting(answer)
    answer.set_result(None)
    async with asyncio.timeout(20):
        await end(task)
    assert task.cancelled()


async def test_who_ends_a_task_and_is_cancelled_meanwhile_leaves_once_it_has_ended() -> None:
    answer = asyncio.get_running_loop().create_future()
    task = await waiting(answer)
    ending = asyncio.create_task(end(task))
    answer.set_result(None)
    await asyncio.sleep(0)
    ending.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({ending})
    assert (ending.cancelled(), task.cancelled()) == (True, True)


async def test_what_a_task_failed_with_is_its_own_to_tell() -> None:
    async def fail() -> None:
        raise ValueError("its own")

    failed = asyncio.create_task(fail())
    await asyncio.wait({failed})
    await end(failed, None)
    with pytest.raises(ValueError, match="its own"):
        failed.result()
