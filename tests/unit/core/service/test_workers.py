"""Worker processes: one that ends is started again, a wrong setting ends all, and no process is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import psutil
import pytest
import uvloop

from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.errors import ConfigError
from ratchet.core.service.health import Health
from ratchet.core.service.http import bound
from ratchet.core.service.workers import (
    ANSWER_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SILENCE_S,
    STEADY_S,
    Pauses,
    Workers,
    held_port,
)

LITTLE = "tests.support.little_worker"
CHECKS = ("start", "workers")
"""Others have been shown by other tests of this process."""


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_steady_time() -> None:
    pauses = Pauses()
    grown = [pauses.after(lived_s=0.1) for _ in range(9)]
    assert grown[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert grown[-1] == LONGEST_PAUSE_S
    assert pauses.after(lived_s=STEADY_S) == FIRST_PAUSE_S
    assert pauses.after(lived_s=0.1) == 2 * FIRST_PAUSE_S


@contextmanager
def setting(**environment: str) -> Iterator[None]:
    """Variables that processes inherit which start meanwhile."""
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]


@asynccontextmanager
async def at_work(number: int, silence_s: float = SILENCE_S) -> AsyncIterator[tuple[Workers, list[int]]]:
    """Little workers, and the list that grows with each death."""
    deaths: list[int] = []
    workers = Workers(LITTLE, number, 0, on_death=lambda: deaths.append(1), silence_s=silence_s)
    running = asyncio.create_task(workers.run())
    try:
        yield workers, deaths
        await workers.stop()
        await running
    finally:
        await end(running)


async def ready(workers: Workers) -> bool:
    return not (await workers.report(metrics=False)).reasons


async def test_a_worker_that_dies_is_started_again_and_counts_go_on() -> None:
    async with at_work(2) as (workers, deaths):
        await eventually(lambda: ready(workers))
        assert await starts(workers) == 2
        pid = workers.processes[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def dead() -> bool:
            return bool(deaths)

        await eventually(dead)
        assert await starts(workers) >= 2
        await eventually(lambda: ready(workers))
        assert await starts(workers) == 3
        assert deaths == [1]


async def starts(workers: Workers) -> float:
    families = (await workers.report(metrics=True)).families
    (family,) = [one for one in families if one.name == "little_starts"]
    return sum(value for name, _, value in family.samples if name == "little_starts_total")


async def test_a_setting_that_is_wrong_at_the_start_ends_all_with_its_reason() -> None:
    deaths: list[int] = []
    workers = Workers(LITTLE, 2, 0, on_death=lambda: deaths.append(1))
    with setting(LITTLE_UNFIT="there is no such upstream"), pytest.raises(ConfigError, match="there is no such"):
        await workers.run()
    assert (deaths, [process.pid for process in workers.processes]) == ([], [None, None])


async def test_a_setting_that_becomes_wrong_ends_none_of_the_others() -> None:
    async with at_work(2) as (workers, deaths):
        await eventually(lambda: ready(workers))
        await eventually(lambda: have_run(workers))
        first, second = (process.pid for process in workers.processes)
        assert second is not None
        with setting(LITTLE_UNFIT="the disk is gone"):
            os.kill(second, signal.SIGKILL)
            await eventually(lambda: reason_is(workers, "worker 2: the disk is gone; it starts again"))
        assert workers.processes[0].pid == first
        await eventually(lambda: ready(workers))
        assert len(deaths) >= 2


async def have_run(workers: Workers) -> bool:
    return all(process.has_run for process in workers.processes)


async def reason_is(workers: Workers, reason: str) -> bool:
    return (await workers.report(metrics=False)).reasons == {"workers": reason}


async def test_a_worker_that_does_not_answer_for_a_while_is_named_and_goes_on() -> None:
    async with at_work(2) as (workers, deaths):
        await eventually(lambda: ready(workers))
        pid = workers.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: reason_is(workers, f"worker 1: no answer within {ANSWER_S:g} s"))
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: ready(workers))
        assert (workers.processes[0].pid, deaths) == (pid, [])


async def test_a_worker_that_hangs_is_ended_and_started_again() -> None:
    async with at_work(1, silence_s=2.0) as (workers, deaths):
        await eventually(lambda: ready(workers))
        pid = workers.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

        async def ended() -> bool:
            return not psutil.pid_exists(pid)

        await eventually(ended)
        await eventually(lambda: ready(workers))
        assert deaths


async def leaving() -> Mapping[str, str]:
    """A worker's channel closes before it ends: its supervisor then says so."""
    with setting(LITTLE_LEAVES="1"):
        async with at_work(1) as (workers, _):
            await eventually(lambda: reason_is(workers, "worker 1: it ends"))
            report = await workers.report(metrics=True)
            return report.reasons


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_worker_that_has_left_its_channel_is_named(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(leaving()) == {"workers": "worker 1: it ends"}


async def test_the_service_has_the_reasons_and_the_metrics_of_its_workers() -> None:
    async with at_work(2) as (workers, _):
        health = Health("little", starting=None, others=workers)
        await eventually(lambda: ready(workers))
        assert await failing(health) == {"start": 0.0}
        pid = workers.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: shows(health, {"start": 0.0, "workers": 1.0}))
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: shows(health, {"start": 0.0, "workers": 0.0}))


async def failing(health: Health) -> dict[str, float]:
    families = (await health.report(metrics=True)).families
    (family,) = [one for one in families if one.name == "ratchet_check_failing"]
    return {dict(labels)["check"]: value for _, labels, value in family.samples if dict(labels)["check"] in CHECKS}


async def shows(health: Health, checks: dict[str, float]) -> bool:
    return await failing(health) == checks


async def test_a_stop_while_the_workers_start_ends_them() -> None:
    async with at_work(3):
        await asyncio.sleep(0)
    async with at_work(3) as (workers, deaths):
        await eventually(lambda: started(workers))
    assert deaths == []


async def test_after_a_stop_the_workers_have_ended() -> None:
    async with at_work(1) as (workers, _):
        await eventually(lambda: ready(workers))
    assert await reason_is(workers, "worker 1: it has ended")


async def started(workers: Workers) -> bool:
    return all(process.pid is not None for process in workers.processes)


async def test_workers_that_are_cancelled_leave_no_process() -> None:
    workers = Workers(LITTLE, 2, 0, on_death=lambda: None)
    running = asyncio.create_task(workers.run())
    await eventually(lambda: ready(workers))
    processes = [psutil.Process(process.pid) for process in workers.processes]
    await end(running)
    assert not any(process.is_running() for process in processes)


async def test_who_stops_while_a_worker_waits_to_start_again_waits_for_nothing() -> None:
    with setting(LITTLE_STATUS="3"):
        async with at_work(1) as (workers, _):
            await eventually(lambda: reason_is(workers, "worker 1: it ended with status 3; it starts again"))
        assert [process.pid for process in workers.processes] == [None]


def test_a_held_port_is_shared_by_its_workers_alone() -> None:
    with held_port("127.0.0.1", 0) as port, bound("127.0.0.1", port, shared=True) as worker:
        worker.listen()
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConfigError, match="Address already in use"), held_port("127.0.0.1", port):
            pass
        with pytest.raises(ConfigError, match="Address already in use"):
            bound("127.0.0.1", port)
    bound("127.0.0.1", port).close()
