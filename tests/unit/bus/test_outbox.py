"""The outbox publishes in order, spools while the broker is away, and loses nothing without counting it."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest

from ratchet.bus import outbox as outbox_module
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import NoSpool, Spool
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeBroker, connect, eventually
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.errors import InvalidMessage
from ratchet.core.service.contracts import load_contracts
from tests.support.fake_bus import fake_broker
from tests.support.messages import trajectory
from tests.support.running import forgetful

CONTRACTS = load_contracts()


def ids(count: int, start: int = 0) -> list[str]:
    return [trajectory(str(n)).event_id for n in range(start, start + count)]


def put(outbox: Outbox, numbers: range) -> None:
    for n in numbers:
        outbox.put(trajectory(str(n)))


@asynccontextmanager
async def running(outbox: Outbox) -> AsyncIterator[None]:
    """Without a broker."""

    async def connect() -> Any:
        await forgetful()

    task = asyncio.create_task(outbox.run(connect))
    try:
        yield
    finally:
        await end(task, again_s=0.01)


@asynccontextmanager
async def publishing(outbox: Outbox, broker: FakeBroker) -> AsyncIterator[None]:
    task = asyncio.create_task(outbox.run(partial(connect, broker)))
    try:
        yield
    finally:
        await outbox.stop()
        await task


OpenSpool = Callable[..., Spool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[OpenSpool]:
    """Opens the spool of the test; whatever is open at the end is closed."""
    opened: list[Spool] = []

    def open_one(max_bytes: int = 1_000_000) -> Spool:
        opened.append(Spool(tmp_path, max_bytes))
        return opened[-1]

    yield open_one
    for spool in opened:
        spool.close()


def outbox_with(spool: Spool, queue_limit: int = 1000) -> Outbox:
    return Outbox(CONTRACTS, "test", spool, queue_limit=queue_limit)


async def test_messages_are_stored_in_the_order_they_were_put(open_spool: OpenSpool) -> None:
    outbox, broker = outbox_with(open_spool()), fake_broker()
    async with publishing(outbox, broker):
        put(outbox, range(300))
        assert await outbox.flush(5)
    assert broker.ids == ids(300)
    assert outbox.stats.published == 300


async def test_while_the_broker_is_away_messages_wait_on_disk_and_drain_in_order(open_spool: OpenSpool) -> None:
    spool = open_spool()
    outbox, broker = outbox_with(spool), fake_broker()
    async with publishing(outbox, broker):
        outbox.put(trajectory("0"))
        assert await outbox.flush(5)
        broker.go_away()
        put(outbox, range(1, 50))
        await eventually(lambda: _equal(spool, 49))
        broker.come_back()
        put(outbox, range(50, 60))
        assert await outbox.flush(5)
    assert broker.ids == ids(60)


async def _equal(spool: Spool, pending: int) -> bool:
    return spool.pending == pending


async def _asked(broker: FakeBroker, before: int) -> bool:
    return broker.asked > before


@asynccontextmanager
async def one_spooled(spool: Spool) -> AsyncIterator[tuple[Outbox, FakeBroker]]:
    """An outbox at work whose first message is in the spool: the broker is connected, but refuses."""
    outbox, broker = outbox_with(spool), fake_broker()
    broker.refusing = True
    async with publishing(outbox, broker):
        outbox.put(trajectory("0"))
        await eventually(lambda: _equal(spool, 1))
        yield outbox, broker


async def test_a_publish_that_fails_goes_to_the_spool_and_is_not_overtaken(open_spool: OpenSpool) -> None:
    async with one_spooled(open_spool()) as (outbox, broker):
        broker.come_back()
        outbox.put(trajectory("1"))
        assert await outbox.flush(5)
    assert broker.ids == ids(2)


async def test_while_the_spool_drains_newer_messages_wait_on_disk_behind_it(open_spool: OpenSpool) -> None:
    spool = open_spool()
    async with one_spooled(spool) as (outbox, broker):
        broker.answering.clear()
        before = broker.asked
        await eventually(lambda: _asked(broker, before))
        broker.come_back()
        put(outbox, range(1, 20))
        await eventually(lambda: _equal(spool, 20))
        broker.answering.set()
        assert await outbox.flush(5)
    assert broker.ids == ids(20)


async def test_messages_left_at_the_end_are_published_after_a_restart(open_spool: OpenSpool) -> None:
    spool, away = open_spool(), fake_broker()
    away.go_away()
    outbox = outbox_with(spool)
    async with publishing(outbox, away):
        put(outbox, range(5))
    spool.close()

    broker, again = fake_broker(), outbox_with(open_spool())
    async with publishing(again, broker):
        again.put(trajectory("5"))
        assert await again.flush(5)
    assert broker.ids == ids(6)


async def test_a_message_larger_than_the_broker_takes_does_not_block_the_others(open_spool: OpenSpool) -> None:
    spool = open_spool(10_000_000)
    outbox, broker = outbox_with(spool), fake_broker()
    broker.nc.max_payload = 10_000
    noise = Random(1).randbytes(30_000).hex()
    huge = trajectory("huge", task_context=TaskContext(task_id="t", instructions=noise))
    broker.go_away()
    async with publishing(outbox, broker):
        for message in (trajectory("0"), huge, trajectory("1")):
            outbox.put(message)
        await eventually(lambda: _equal(spool, 3))
        broker.come_back()
        assert await outbox.flush(5)
    assert broker.ids == ids(2)
    assert (outbox.stats.refused, outbox.stats.published) == (1, 2)


async def test_a_full_queue_and_a_full_disk_are_counted(open_spool: OpenSpool) -> None:
    outbox, broker = outbox_with(open_spool(3_000), queue_limit=20), fake_broker()
    broker.go_away()
    put(outbox, range(30))
    assert outbox.stats.overflowed == 10
    async with publishing(outbox, broker):
        pass
    kept = outbox.pending
    assert 0 < kept < 20
    assert outbox.stats.overflowed == 30 - kept


async def test_what_a_full_disk_does_not_take_waits_in_memory(open_spool: OpenSpool) -> None:
    spool, broker = open_spool(3_000), fake_broker()
    outbox = outbox_with(spool)
    broker.go_away()
    async with publishing(outbox, broker):
        put(outbox, range(20))
        await eventually(lambda: _true(spool.pending > 0))
        broker.come_back()
        assert await outbox.flush(5)
        put(outbox, range(20, 25))
        assert await outbox.flush(5)
    assert broker.ids == ids(25)
    assert (outbox.stats.published, outbox.stats.overflowed) == (25, 0)


async def test_without_a_disk_the_broker_still_gets_messages_while_it_is_there() -> None:
    outbox, broker = outbox_with(NoSpool()), fake_broker()
    async with publishing(outbox, broker):
        outbox.put(trajectory("0"))
        assert await outbox.flush(5)
        broker.go_away()
        outbox.put(trajectory("1"))
        assert not await outbox.flush(0.05)
        broker.come_back()
        assert await outbox.flush(5)
        broker.go_away()
        outbox.put(trajectory("2"))
    assert broker.ids == ids(2)
    assert (outbox.stats.overflowed, outbox.pending) == (1, 0)


async def test_an_invalid_message_is_refused_before_it_is_queued() -> None:
    outbox = outbox_with(NoSpool())
    with pytest.raises(InvalidMessage):
        outbox.put(msgspec.structs.replace(trajectory(), trajectory_id="not a uuid"))
    assert outbox.pending == 0


async def test_flushing_gives_up_at_its_deadline(open_spool: OpenSpool) -> None:
    outbox, broker = outbox_with(open_spool()), fake_broker()
    broker.go_away()
    async with publishing(outbox, broker):
        outbox.put(trajectory())
        assert not await outbox.flush(0.05)


async def test_queued_messages_are_kept_when_the_outbox_is_cancelled(open_spool: OpenSpool) -> None:
    async def connect() -> Any:
        await forgetful()

    spool = open_spool()
    outbox = outbox_with(spool)
    running = asyncio.create_task(outbox.run(connect))
    await asyncio.sleep(0)
    outbox.put(trajectory())
    await end(running, again_s=0.01)
    assert spool.pending == 1


@pytest.mark.parametrize(("keeps", "lost"), [(True, 0), (False, 20)])
async def test_outbox_cancelled_amid_a_batch_keeps_or_counts_it(open_spool: OpenSpool, keeps: bool, lost: int) -> None:
    broker, outbox = fake_broker(), outbox_with(open_spool() if keeps else NoSpool())
    broker.answering.clear()
    put(outbox, range(20))
    running = asyncio.create_task(outbox.run(partial(connect, broker)))
    await eventually(lambda: _true(broker.asked == 20))
    await end(running, again_s=0.01)
    assert (outbox.stats.published, outbox.pending, outbox.stats.overflowed) == (0, 20 - lost, lost)


async def test_outbox_keeps_what_was_on_its_way_when_its_loop_ended(open_spool: OpenSpool) -> None:
    broker, spool = fake_broker(), open_spool()
    outbox = outbox_with(spool)
    broker.answering.clear()
    put(outbox, range(20))
    running = asyncio.create_task(outbox.run(partial(connect, broker)))
    await eventually(lambda: _true(broker.asked == 20))
    outbox.put(trajectory("20"))
    outbox.keep_rest()
    assert (spool.pending, outbox.pending) == (21, 21)
    await end(running, again_s=0.01)
    assert (spool.pending, outbox.pending) == (21, 21)


def interrupt_at(count: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises `KeyboardInterrupt` at the line of that number where the outbox moves records."""
    left = [count]

    def line(_: FrameType, event: str, __: Any) -> Any:
        left[0] -= event == "line"
        if left[0] < 0:
            raise KeyboardInterrupt
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        moves = frame.f_code.co_name in ("_take", "_pump", "_keep_or_hold", "_publish_or_keep")
        return line if moves and frame.f_code.co_filename == outbox_module.__file__ else None

    return call


async def stored_by_the_next(spool: Spool) -> list[str]:
    broker, outbox = fake_broker(), outbox_with(spool)
    async with publishing(outbox, broker):
        assert await outbox.flush(5)
    return broker.ids


@pytest.mark.parametrize("is_connected", [False, True])
def test_interrupt_at_any_line_loses_no_record(tmp_path: Path, is_connected: bool) -> None:
    for count in itertools.count():
        spool, broker = Spool(tmp_path / str(count), 1_000_000), fake_broker()
        outbox = outbox_with(spool)
        put(outbox, range(3))

        async def until_moved(outbox: Outbox = outbox, broker: FakeBroker = broker, spool: Spool = spool) -> None:
            async with publishing(outbox, broker) if is_connected else running(outbox):
                await eventually(lambda: _true(len(broker.ids) + spool.pending == 3))

        former = sys.gettrace()
        sys.settrace(interrupt_at(count))
        try:
            asyncio.run(until_moved())
            is_interrupted = False
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.settrace(former)
        outbox.keep_rest()
        kept = asyncio.run(stored_by_the_next(spool))
        spool.close()
        assert {*broker.ids, *kept} == {*ids(3)}
        if not is_interrupted:
            assert count > 10
            return


def incompressible(name: str, size: int) -> Any:
    text = Random(name).randbytes(size // 2).hex()
    return trajectory(name, task_context=TaskContext(task_id=name, instructions=text))


async def test_the_queue_is_bounded_in_bytes(open_spool: OpenSpool) -> None:
    outbox = Outbox(CONTRACTS, "test", open_spool(10_000_000), queue_bytes=200_000)
    taken = [outbox.put(incompressible(str(n), 100_000)) for n in range(10)]
    assert taken == [True] * 4 + [False] * 6  # a text of 100 KB goes compressed by half
    assert outbox.stats.overflowed == 6
    broker = fake_broker()
    async with publishing(outbox, broker):
        assert await outbox.flush(5)
        assert outbox.put(incompressible("later", 100_000))
        assert await outbox.flush(5)
    assert len(broker.ids) == 5


async def test_a_batch_is_bounded_in_bytes() -> None:
    broker = fake_broker()
    broker.nc.max_payload = 100_000_000
    broker.answering.clear()
    outbox = Outbox(CONTRACTS, "test", NoSpool(), queue_bytes=100_000_000)
    for n in range(4):
        outbox.put(incompressible(str(n), 6_000_000))
    async with publishing(outbox, broker):
        await eventually(lambda: _true(broker.asked == 2))  # 8 MiB hold two bodies of 3 MB
        broker.answering.set()
        assert await outbox.flush(5)
    assert broker.asked == 4


async def test_spools_of_processes_that_are_gone_are_published_too(tmp_path: Path) -> None:
    gone, ours = Spool.claim(tmp_path, 1_000_000), Spool.claim(tmp_path, 1_000_000)
    before = outbox_with(gone)
    before.put(trajectory("left behind"))
    never = asyncio.create_task(before.run(_never))
    await eventually(lambda: _true(gone.pending == 1))
    await end(never)
    gone.close()
    outbox, broker = outbox_with(ours), fake_broker()
    async with publishing(outbox, broker):
        await eventually(lambda: _true(bool(broker.ids)))
    assert broker.ids == [trajectory("left behind").event_id]
    ours.close()


async def _never() -> Any:
    await asyncio.Event().wait()


async def _true(value: bool) -> bool:
    return value
