"""An attempt always reports its end, once, whatever the broker and the contract say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.received import Received
from ratchet.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.contract.state import JOBS, Job
from ratchet.contract.training import Hyperparameters
from ratchet.errors import BusUnavailable, InvalidMessage
from ratchet.service.settings import SharedSettings
from ratchet.trainer_worker.attempt import Attempt
from ratchet.trainer_worker.domain import StopReason
from ratchet.trainer_worker.settings import Settings
from tests.support.blobs import MemoryBlobs
from tests.support.fake_bus import fake_bus
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


def attempt(tmp_path: Path, publisher: Publisher, **hyper: Any) -> Attempt:
    asked = request()
    config = msgspec.structs.replace(asked.training_config, hyperparameters=Hyperparameters(**hyper))
    asked = msgspec.structs.replace(asked, training_config=config)
    dispatch = TrainingDispatch(
        training_job_id=asked.training_job_id, attempt=1, pool="default", timestamp=NOW, request=asked
    )
    settings = Settings(shared=SharedSettings(data_dir=tmp_path), worker="w1", retry_s=0.01)
    bus: Any = publisher
    blobs: Any = MemoryBlobs()
    jobs: Any = fake_bus().bucket(JOBS, Job)
    return Attempt(received(dispatch), bus=bus, jobs=jobs, objects=blobs, settings=settings)


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


async def test_a_fenced_attempt_publishes_nothing_whatever_happens(tmp_path: Path) -> None:
    publisher = Publisher()
    one = attempt(tmp_path, publisher, gamma=0.9)
    one.request_stop(StopReason.CANCELLED)
    one.request_stop(StopReason.FENCED)
    await one.run()
    assert publisher.offered == []
