"""The copy of the jobs in memory follows the bucket and is never older than what the process itself wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.core.contract.state import JOBS, Job
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from tests.support.fake_bus import fake_broker
from tests.support.running import running
from tests.support.training import changed, job, request


def store_on(broker: FakeBroker) -> KvJobs:
    bus = FakeBus(broker)
    return KvJobs(Bucket(bus, JOBS, Job), Bucket(bus, "coordinator", str))


def states(store: KvJobs) -> list[str]:
    return [one.state for one in store.all_jobs()]


async def knows(store: KvJobs, expected: list[str]) -> None:
    async def reached() -> bool:
        return states(store) == expected

    await eventually(reached)


async def test_changes_of_another_coordinator_are_known_without_reading_all() -> None:
    broker = fake_broker()
    one, other = store_on(broker), store_on(broker)
    first = job("first")
    async with running(one):
        await other.create_job(first)
        await knows(one, ["queued"])
        await other.change_job(first.training_job_id, lambda current: changed(current, state="dispatched"))
        await knows(one, ["dispatched"])
        assert [each.state for each in one.jobs_of("support")] == ["dispatched"]
        assert await other.remove_job(await other.get_job(first.training_job_id))
        await knows(one, [])


async def test_job_resumed_after_it_was_listed_as_old_stays() -> None:
    store = store_on(fake_broker())
    listed = job("old", state="failed", request=request("old", idempotency_key="nightly"))
    await store.create_job(listed)
    await store.change_job(listed.training_job_id, lambda current: changed(current, state="queued", attempt=2))
    assert not await store.remove_job(listed)
    kept = await store.find_job("another", "support", "nightly")
    assert kept is not None
    assert (kept.training_job_id, kept.state) == (listed.training_job_id, "queued")
    assert states(store) == ["queued"]


class ResumedWhileRead(Bucket[Job]):
    """Another coordinator resumes a job between the read and the delete."""

    async def get(self, key: str) -> Entry[Job] | None:
        entry = await super().get(key)
        if entry is not None:
            await self.put(key, changed(entry.value, state="queued", attempt=2))
        return entry


async def test_a_job_that_is_resumed_while_it_is_removed_stays() -> None:
    bus = FakeBus(fake_broker())
    bucket = ResumedWhileRead(bus, JOBS, Job)
    store, old = KvJobs(bucket, Bucket(bus, "coordinator", str)), job("old", state="failed")
    await store.create_job(old)
    assert not await store.remove_job(old)
    assert await bucket.keys() == [old.training_job_id]


class SlowBucket(Bucket[Job]):
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
    store = KvJobs(bucket, Bucket(bus, "coordinator", str))
    queued, gone = job("queued"), job("gone", state="completed")
    for one in (queued, gone):
        await store.create_job(one)
    reading = asyncio.create_task(store.load())
    await bucket.has_read.wait()
    await store.change_job(queued.training_job_id, lambda current: changed(current, state="dispatched"))
    bucket.goes_on.set()
    await reading
    assert sorted(states(store)) == ["completed", "dispatched"]
