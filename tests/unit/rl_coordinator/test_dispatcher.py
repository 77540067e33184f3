"""Free slots go to the role that is ready first; what goes wrong with one job leaves the others alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus, eventually
from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.state import JOBS, Job, JobState
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.errors import ObjectsUnavailable, Rejected
from ratchet.rl_coordinator.jobs.dispatcher import Dispatcher
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from tests.support.fake_bus import fake_bus
from tests.support.training import NOON, after, job, request

SNAPSHOT = SnapshotRef(uri="s3://b/snapshots/1.json", digest="d" * 64)


class Bench:
    """A dispatcher whose exports end when the test says so."""

    def __init__(self, slots: int = 1, exports: int = 4) -> None:
        self.bus: FakeBus = fake_bus(lambda: NOON)
        self.store = KvJobs(Bucket(self.bus, JOBS, Job), Bucket(self.bus, "coordinator", str))
        self.begun: list[str] = []
        self.finish: dict[str, asyncio.Future[None]] = {}
        self.dispatcher = Dispatcher(
            bus=self.bus,
            store=self.store,
            prepare=self._prepare,
            schedule=Schedule({"default": slots}, ageing_s=60),
            exports=exports,
        )

    async def _prepare(self, one: Job) -> None:
        self.begun.append(one.role)
        await self.finish.setdefault(one.role, asyncio.get_running_loop().create_future())
        await self.store.change_job(one.training_job_id, lambda current: replace(current, snapshot=SNAPSHOT))

    async def queue(self, *roles: str) -> list[str]:
        ids: list[str] = []
        for number, role in enumerate(roles):
            asked = request(f"{role} {number}", role=role)
            created, _ = await self.store.create_job(job(request=asked, created_at=after(number)))
            ids.append(created.training_job_id)
        return ids

    async def ticked(self, times: int = 1) -> None:
        for _ in range(times):
            await self.dispatcher.tick()
            await asyncio.sleep(0)

    def end_export(self, role: str, error: Exception | None = None) -> None:
        future = self.finish.setdefault(role, asyncio.get_running_loop().create_future())
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def dispatched(self) -> list[str]:
        return [one.request.role for one in self.bus.published(TrainingDispatch)]

    async def until_dispatched(self, *roles: str) -> None:
        async def reached() -> bool:
            return self.dispatched() == [*roles]

        await eventually(reached)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    running = asyncio.create_task(made.dispatcher.run())
    yield made
    await made.dispatcher.stop()
    await running


async def test_a_slow_export_delays_no_other_role_also_with_a_single_slot(bench: Bench) -> None:
    await bench.queue("slow", "quick")
    await bench.ticked(2)
    assert bench.begun == ["slow", "quick"]
    bench.end_export("quick")
    await bench.until_dispatched("quick")
    bench.end_export("slow")
    await bench.ticked(3)
    assert bench.dispatched() == ["quick"]


async def test_role_is_prepared_once_at_a_time_and_holds_up_no_other_role(bench: Bench) -> None:
    await bench.queue("slow", "slow", "quick")
    await bench.ticked(3)
    assert bench.begun == ["slow", "quick"]


async def test_no_more_roles_are_prepared_at_a_time_than_the_setting_allows() -> None:
    bench = Bench(slots=5, exports=2)
    await bench.queue("one", "two", "three")
    await bench.ticked(3)
    assert bench.begun == ["one", "two"]
    bench.end_export("two")
    await bench.until_dispatched("two")
    await bench.ticked()
    assert bench.begun == ["one", "two", "three"]
    bench.end_export("one")
    bench.end_export("three")
    await bench.until_dispatched("two", "one", "three")


async def test_jobs_that_are_ready_at_once_do_not_exceed_the_slots(bench: Bench) -> None:
    await bench.queue("one", "two", "three")
    await bench.ticked(3)
    for role in ("one", "two", "three"):
        bench.end_export(role)
    await bench.until_dispatched("one")
    await bench.ticked(3)
    assert bench.dispatched() == ["one"]


async def test_job_that_cannot_be_prepared_fails_and_an_absent_store_is_retried(bench: Bench) -> None:
    bad, away = await bench.queue("bad", "away")
    await bench.ticked(2)
    bench.end_export("bad", Rejected("no rows"))
    bench.end_export("away", ObjectsUnavailable("gone"))

    async def failed() -> bool:
        return (await bench.store.get_job(bad)).state == JobState.FAILED

    await eventually(failed)
    assert (await bench.store.get_job(away)).state == JobState.QUEUED
    bench.finish.clear()
    await bench.ticked(2)
    bench.end_export("away")
    await bench.until_dispatched("away")


async def test_a_stop_drops_what_is_being_prepared_and_the_job_stays_queued() -> None:
    bench = Bench()
    running = asyncio.create_task(bench.dispatcher.run())
    (waiting,) = await bench.queue("slow")
    await bench.ticked()
    await bench.dispatcher.stop()
    await running
    assert bench.finish["slow"].cancelled()
    assert (await bench.store.get_job(waiting)).state == JobState.QUEUED
