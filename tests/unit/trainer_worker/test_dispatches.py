"""A dispatch starts its attempt once, waits for a slot, and is dropped when it is out of date."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from ratchet.bus.consumer import Done, Retry
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import AuditEntry, TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.errors import Unavailable
from ratchet.core.service.audit import AuditLog
from ratchet.trainer_worker.attempt import Attempt
from ratchet.trainer_worker.domain import StopReason, Worker
from ratchet.trainer_worker.handlers import Dispatches, Slots
from ratchet.trainer_worker.slots import Slot
from tests.support.fake_bus import fake_bus
from tests.support.training import job, received, request

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class FakeAttempt:
    """Trains until it is asked to stop."""

    def __init__(self, given: Received[TrainingDispatch], slot: Slot) -> None:
        self.dispatch = given.message
        self.slot = slot
        self.launched = asyncio.Event()
        self.stopping = asyncio.Event()
        self.reason: StopReason | None = None
        self.has_child = True

    async def run(self) -> None:
        self.launched.set()
        await self.stopping.wait()

    def request_stop(self, reason: StopReason) -> None:
        self.reason = reason
        self.stopping.set()

    def running_status(self) -> TrainingStatus:
        one = self.dispatch
        return TrainingStatus(training_job_id=one.training_job_id, timestamp=NOW, status="running", attempt=one.attempt)


class Bench:
    """One worker with fake attempts."""

    def __init__(self, slots: int = 1) -> None:
        self.started: list[FakeAttempt] = []
        places = [Slot("one", gpu=str(number)) for number in range(slots)]
        self.slots = Slots(places, cast("Any", self._make))
        self.bus = fake_bus()
        self.jobs: Any = Bucket(self.bus, JOBS, Job)
        audit = AuditLog(self.bus, "trainer_worker")
        self.dispatches = Dispatches(self.slots, self.jobs, Worker("w1", "one"), audit)

    def _make(self, given: Received[TrainingDispatch], slot: Slot) -> Attempt:
        attempt = FakeAttempt(given, slot)
        self.started.append(attempt)
        return cast("Attempt", attempt)

    async def give(self, name: str = "job", attempt: int = 1, **changes: Any) -> Any:
        asked = request(name, **changes)
        dispatch = TrainingDispatch(
            training_job_id=asked.training_job_id, attempt=attempt, pool="default", timestamp=NOW, request=asked
        )
        (outcome,) = await self.dispatches.on_dispatches([received(dispatch)])
        return outcome


async def test_a_dispatch_is_done_once_its_training_runs_and_has_reported_so() -> None:
    bench = Bench()
    outcome = await bench.give()
    assert isinstance(outcome, Done)
    assert [event.status for event in cast("list[TrainingStatus]", outcome.events)] == ["running"]


async def test_training_begins_once_the_audit_log_names_its_data() -> None:
    bench = Bench()
    bench.bus.broker.refusing = True
    with pytest.raises(Unavailable, match="audit log"):
        await bench.give()
    assert bench.started == []
    bench.bus.broker.refusing = False
    config = request().training_config
    snapshot = SnapshotRef(uri="s3://ratchet/snapshots/a.json", digest="a" * 64)
    dataset = msgspec.structs.replace(config.dataset, snapshot=snapshot)
    await bench.give(training_config=msgspec.structs.replace(config, dataset=dataset))
    (entry,) = bench.bus.published(AuditEntry)
    assert (entry.act, entry.actor, len(bench.started)) == ("train", "trainer_worker w1", 1)
    assert entry.objects is not None
    assert entry.objects[1:] == [f"snapshot {snapshot.digest}"]


async def test_the_same_dispatch_again_starts_nothing_while_it_runs_and_after() -> None:
    bench = Bench(slots=1)
    await bench.give()
    assert await bench.give() == Done()
    bench.started[0].request_stop(StopReason.CANCELLED)

    async def free() -> bool:
        return bench.slots.free()

    await eventually(free)
    assert await bench.give() == Done()
    assert len(bench.started) == 1


async def test_a_dispatch_without_a_free_slot_comes_again() -> None:
    bench = Bench(slots=1)
    await bench.give("one")
    assert isinstance(await bench.give("two"), Retry)
    assert len(bench.started) == 1


async def test_trainings_at_a_time_have_a_gpu_each_and_it_is_free_again_after() -> None:
    bench = Bench(slots=2)
    await bench.give("one")
    await bench.give("two")
    assert [attempt.slot.gpu for attempt in bench.started] == ["0", "1"]
    bench.started[1].request_stop(StopReason.CANCELLED)

    async def free() -> bool:
        return bench.slots.free()

    await eventually(free)
    await bench.give("three")
    assert bench.started[2].slot.gpu == "1"


async def test_what_another_worker_of_this_name_runs_is_dropped() -> None:
    bench = Bench()
    await bench.jobs.put(request().training_job_id, job(state="running", attempt=1, worker="w1", instance="two"))
    assert await bench.give(attempt=1) == Done()
    assert bench.started == []


async def test_an_overtaken_dispatch_is_dropped() -> None:
    bench = Bench()
    await bench.jobs.put(request().training_job_id, job(state="queued", attempt=2))
    assert await bench.give(attempt=1) == Done()
    assert bench.started == []


async def test_a_stopping_worker_takes_nothing_and_stops_what_runs() -> None:
    bench = Bench(slots=2)
    await bench.give("one")
    running = asyncio.create_task(bench.slots.run())
    await bench.slots.stop()
    assert isinstance(await bench.give("two"), Retry)
    await running
    assert bench.started[0].reason is StopReason.SHUTDOWN
