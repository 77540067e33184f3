"""An attempt always reports its end, once, whatever the broker and the contract say."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import REGISTRY

from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.errors import BusUnavailable, InvalidMessage, ObjectsUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import ObjectRef
from ratchet.trainer_worker.attempt import Attempt, Timing
from ratchet.trainer_worker.child_process import Child
from ratchet.trainer_worker.domain import Exit, StopReason
from ratchet.trainer_worker.job import Event, JobSpec, Progressed, Saved, Stopped
from ratchet.trainer_worker.settings import Settings
from ratchet.trainer_worker.slots import Slot
from ratchet.trainer_worker.training.checkpoints import CheckpointStore
from tests.support.blobs import MemoryBlobs
from tests.support.fake_bus import fake_bus
from tests.support.trainer_inputs import dispatch as stored_dispatch, model
from tests.support.training import received, request

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Publisher:
    """A bus that refuses the first statuses with the given errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.causes: list[str | None] = []
        self.offered: list[TrainingStatus] = []
        self.published: list[TrainingStatus] = []

    def now(self) -> datetime:
        return NOW

    async def publish(self, message: Message, *, cause: Received[Message] | None = None) -> None:
        assert isinstance(message, TrainingStatus)
        self.causes.append(cause.event_id if cause else None)
        self.offered.append(message)
        if self.errors:
            raise self.errors.pop(0)
        self.published.append(message)


class FakeChild:
    """A training process that reports `reported` and stops when it is asked to, a while later."""

    pid = 0

    def __init__(self, directory: Path, reported: Sequence[Event], stopping: Sequence[Event]) -> None:
        self._directory = directory
        self._reported = reported
        self._stopping = stopping
        self.asked = asyncio.Event()
        self.killed = asyncio.Event()

    async def events(self) -> AsyncIterator[Event]:
        for event in self._reported:
            yield event
        await self.asked.wait()
        for _ in range(50):  # a train step, during which a worker without patience would kill
            await asyncio.sleep(0)
        for event in () if self.killed.is_set() else self._stopping:
            yield event

    def memory_gb(self) -> float:
        return 0.0

    def ask_to_stop(self) -> None:
        self.asked.set()

    def kill(self) -> None:
        self.killed.set()
        self.asked.set()

    async def wait(self) -> Exit:
        return Exit(code=-9 if self.killed.is_set() else 0)


class FakeSlot:
    """Starts `FakeChild`."""

    instance = "one"
    gpu = None
    ranks = 1

    def __init__(self, reported: Sequence[Event], stopping: Sequence[Event]) -> None:
        self._events = reported, stopping
        self.child: FakeChild | None = None

    async def start(self, spec: JobSpec, directory: Path) -> Child:
        self.child = FakeChild(directory, *self._events)
        return cast("Child", self.child)


def training_attempt(
    tmp_path: Path, publisher: Publisher, blobs: MemoryBlobs, slot: FakeSlot, **timing: float
) -> Attempt:
    """An attempt whose inputs are in `blobs`."""
    given = stored_dispatch(blobs, model(blobs, tmp_path / "base").uri)
    bus: Any = publisher
    objects: Any = blobs
    jobs: Any = Bucket(fake_bus(), JOBS, Job)
    chosen = Settings(shared=SharedSettings(data_dir=tmp_path), worker="w1")
    return Attempt(
        received(given),
        bus=bus,
        jobs=jobs,
        objects=objects,
        settings=chosen,
        slot=cast("Slot", slot),
        timing=Timing(retry_s=0.01, **timing),
    )


def checkpoint(root: Path, step: int) -> Saved:
    """A checkpoint of a fake training."""
    store = CheckpointStore(root, request().training_job_id, 2, "rloo")
    saved = store.save(step, float(step), lambda directory: (directory / "state").write_bytes(b"%d" % step) and None)
    return Saved(directory=str(saved.directory), step=step, took_s=1.0)


def store_of(root: Path) -> list[Path]:
    return [kept.directory for kept in CheckpointStore(root, request().training_job_id, 2, "rloo").all()]


def progressed(longest_step_s: float) -> Progressed:
    return Progressed(
        step=1, total_steps=9, epoch=1, total_epochs=1, eta_s=0.0, longest_step_s=longest_step_s, metrics={"loss": 1.0}
    )


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.SHUTDOWN])
async def test_training_with_long_train_steps_has_the_time_to_leave_a_checkpoint(
    tmp_path: Path, reason: StopReason
) -> None:
    publisher, blobs = Publisher(), MemoryBlobs()
    slot = FakeSlot([progressed(30.0)], [checkpoint(tmp_path / "c", 2), Stopped(step=2)])
    one = training_attempt(tmp_path, publisher, blobs, slot, grace_s=0.0)
    running = asyncio.create_task(one.run())
    await one.launched.wait()
    one.request_stop(reason)
    await running
    (status,) = publisher.published
    assert status.status == "cancelled"
    assert status.artifacts is not None
    assert status.artifacts.checkpoint in blobs.blobs


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.FENCED])
async def test_figures_are_shown_until_the_attempt_has_ended(tmp_path: Path, reason: StopReason) -> None:
    slot = FakeSlot([progressed(1.0)], [Stopped(step=2)])
    one = training_attempt(tmp_path, Publisher(), MemoryBlobs(), slot, heartbeat_s=0.01, grace_s=0.0)
    running = asyncio.create_task(one.run())

    async def shown() -> bool:
        return loss(one.dispatch.request.role) == 1.0

    await eventually(shown)
    one.request_stop(reason)
    await running
    assert loss(one.dispatch.request.role) is None


def loss(role: str) -> float | None:
    return REGISTRY.get_sample_value("ratchet_training_figure", {"role": role, "figure": "loss"})


async def test_a_training_that_does_not_stop_is_killed_after_its_grace(tmp_path: Path) -> None:
    publisher, slot = Publisher(), FakeSlot([], [Stopped(step=2)])
    one = training_attempt(tmp_path, publisher, MemoryBlobs(), slot, grace_s=0.0)
    running = asyncio.create_task(one.run())
    await one.launched.wait()
    one.request_stop(StopReason.CANCELLED)
    await running
    assert slot.child is not None
    assert slot.child.killed.is_set()
    assert [status.status for status in publisher.published] == ["cancelled"]


class AwayBlobs(MemoryBlobs):
    """Gives nothing."""

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        raise ObjectsUnavailable("connection refused")


async def test_patience_with_the_object_store_ends_in_words(tmp_path: Path) -> None:
    publisher = Publisher()
    one = training_attempt(tmp_path, publisher, AwayBlobs(), FakeSlot([], []), patience_s=0.03)
    await asyncio.wait_for(one.run(), 5)
    (status,) = publisher.published
    assert status.error is not None
    assert (status.status, status.error.code) == ("failed", "INFRA")
    assert status.error.message == "the object store was away for 0.03 s: connection refused"


class SlowBlobs(MemoryBlobs):
    """Takes no checkpoint's file before `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.open = threading.Event(), threading.Event()

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef:
        if path.name == "state":
            self.asked.set()
            self.open.wait()
        return super().put_file(path, prefix, suffix)


async def test_a_checkpoint_is_stored_however_many_come_while_it_is_sent(tmp_path: Path) -> None:
    publisher, blobs = Publisher(), SlowBlobs()
    first = checkpoint(tmp_path / "c", 1)
    slot = FakeSlot([first], [Stopped(step=4)])
    one = training_attempt(tmp_path, publisher, blobs, slot)
    running = asyncio.create_task(one.run())
    await asyncio.to_thread(blobs.asked.wait)
    for step in (2, 3, 4):
        checkpoint(tmp_path / "c", step)
    assert [saved.name for saved in store_of(tmp_path / "c")] == ["step-000003", "step-000004"]
    one.request_stop(StopReason.CANCELLED)
    blobs.open.set()
    await running
    (status,) = publisher.published
    assert status.artifacts is not None
    assert json.loads(blobs.get(str(status.artifacts.checkpoint)))["step"] == 1


def attempt(tmp_path: Path, publisher: Publisher, **hyper: Any) -> Attempt:
    asked = request()
    config = msgspec.structs.replace(asked.training_config, hyperparameters=Hyperparameters(**hyper))
    asked = msgspec.structs.replace(asked, training_config=config)
    dispatch = TrainingDispatch(
        training_job_id=asked.training_job_id, attempt=1, pool="default", timestamp=NOW, request=asked
    )
    settings = Settings(shared=SharedSettings(data_dir=tmp_path), worker="w1")
    bus: Any = publisher
    blobs: Any = MemoryBlobs()
    jobs: Any = Bucket(fake_bus(), JOBS, Job)
    return Attempt(
        received(dispatch),
        bus=bus,
        jobs=jobs,
        objects=blobs,
        settings=settings,
        slot=Slot("one"),
        timing=Timing(retry_s=0.01),
    )


async def test_an_impossible_request_fails_before_anything_is_downloaded(tmp_path: Path) -> None:
    publisher = Publisher()
    one = attempt(tmp_path, publisher, gamma=0.9)
    await one.run()
    (status,) = publisher.published
    assert status.error is not None
    assert (status.status, status.error.code, status.error.message) == (
        "failed",
        "DATA",
        "rloo has no hyperparameter gamma",
    )
    assert one.launched.is_set()
    assert not one.has_child


async def test_missing_inputs_fail_with_their_reason_and_leave_no_directory(tmp_path: Path) -> None:
    publisher = Publisher()
    await attempt(tmp_path, publisher).run()
    (status,) = publisher.published
    assert status.error is not None
    assert status.error.code == "DATA"
    assert list((tmp_path / "trainer" / "w1").iterdir()) == []


async def test_a_status_that_breaks_the_contract_is_sent_without_figures(tmp_path: Path) -> None:
    publisher = Publisher(InvalidMessage("1.0000001 is greater than 1", "/metrics/current/ess"))
    await attempt(tmp_path, publisher, gamma=0.9).run()
    assert len(publisher.offered) == 2
    (status,) = publisher.published
    assert (status.status, status.metrics) == ("failed", None)


async def test_the_end_is_reported_when_the_broker_is_back(tmp_path: Path) -> None:
    publisher = Publisher(BusUnavailable("away"))
    await attempt(tmp_path, publisher, gamma=0.9).run()
    assert [status.status for status in publisher.published] == ["failed"]


async def test_every_status_names_the_dispatch_as_its_cause(tmp_path: Path) -> None:
    publisher = Publisher(InvalidMessage("refused", "/metrics"))
    one = attempt(tmp_path, publisher, gamma=0.9)
    await one.run()
    assert publisher.causes == [one.dispatch.event_id] * 2


async def test_an_attempt_that_is_cancelled_before_it_begins_is_cancelled(tmp_path: Path) -> None:
    publisher = Publisher()
    one = attempt(tmp_path, publisher)
    one.request_stop(StopReason.CANCELLED)
    await one.run()
    assert [status.status for status in publisher.published] == ["cancelled"]


@pytest.mark.parametrize(
    ("reasons", "stopping"),
    [
        ([StopReason.CANCELLED], "after_step"),
        ([StopReason.CANCELLED, StopReason.CANCELLED_NOW], "now"),
        ([StopReason.CANCELLED_NOW, StopReason.CANCELLED], "now"),
        ([StopReason.SHUTDOWN], None),
    ],
)
async def test_a_status_acknowledges_the_cancel_that_was_read(
    reasons: list[StopReason], stopping: str | None, tmp_path: Path
) -> None:
    publisher = Publisher()
    one = attempt(tmp_path, publisher)
    for reason in reasons:
        one.request_stop(reason)
    assert one.running_status().stopping == stopping
    await one.run()
    assert [(status.status, status.stopping) for status in publisher.published] == [("cancelled", stopping)]


async def test_a_fenced_attempt_publishes_nothing_whatever_happens(tmp_path: Path) -> None:
    publisher = Publisher()
    one = attempt(tmp_path, publisher, gamma=0.9)
    one.request_stop(StopReason.CANCELLED)
    one.request_stop(StopReason.FENCED)
    await one.run()
    assert publisher.offered == []
