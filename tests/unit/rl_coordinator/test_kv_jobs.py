"""The copy of the jobs in memory follows the bucket and is never older than what the process itself wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ratchet.bus.kv import Entry
from ratchet.bus.testing import FakeBroker, FakeBucket, FakeBus, eventually
from ratchet.contract.state import JOBS, Job
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from tests.support.fake_bus import fake_broker
from tests.support.running import running
from tests.support.training import changed, job


def store_on(broker: FakeBroker) -> KvJobs:
    bus = FakeBus(broker)
    return KvJobs(bus.bucket(JOBS, Job), bus.bucket("coordinator", str))


def states(store: KvJobs) -> list[str]:
    return [one.state for one in store.all_jobs()]


async def knows(store: KvJobs, expected: list[str]) -> None:
    async def reached() -> bool:
        return states(store) == expected

    await eventually(reached)


async def test_what_another_coordinator_writes_and_removes_is_known_without_reading_everything_again() -> None:
    broker = fake_broker()
    one, other = store_on(broker), store_on(broker)
    first = job("first")
    async with running(one):
        await other.create_job(first)
        await knows(one, ["queued"])
        await other.change_job(first.training_job_id, lambda current: changed(current, state="dispatched"))
        await knows(one, ["dispatched"])
        assert [each.state for each in one.jobs_of("support")] == ["dispatched"]
        await other.remove_job(first)
        await knows(one, [])


class SlowBucket(FakeBucket[Job]):
    """Sends what it read only once it may go on."""

    def __init__(self, bus: FakeBus) -> None:
        super().__init__(bus, JOBS, Job)
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def items(self, select: Callable[[str], bool] = lambda _: True) -> dict[str, Entry[Job]]:
        entries = await super().items(select)
        self.has_read.set()
        await self.goes_on.wait()
        return entries


async def test_a_slot_that_is_taken_while_all_jobs_are_read_stays_taken() -> None:
    bus = FakeBus(fake_broker())
    bucket = SlowBucket(bus)
    store = KvJobs(bucket, bus.bucket("coordinator", str))
    queued, gone = job("queued"), job("gone", state="completed")
    for one in (queued, gone):
        await store.create_job(one)
    reading = asyncio.create_task(store.load())
    await bucket.has_read.wait()
    await store.change_job(queued.training_job_id, lambda current: changed(current, state="dispatched"))
    bucket.goes_on.set()
    await reading
    assert sorted(states(store)) == ["completed", "dispatched"]
