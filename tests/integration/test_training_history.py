"""The history of a training on the real ClickHouse: what each attempt used, and curves of ended and of running ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ratchet.core.contract import TrainingStatus, encode, named_id
from ratchet.core.contract.training import (
    Artifacts,
    CurrentMetrics,
    Metrics,
    Progress,
    ResourceUsage,
    StatusMetadata,
    TrainingError,
)
from ratchet.core.rules.figures import Point, curves_of
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.training_history import POINTS, training_history
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.blobs import MemoryBlobs
from tests.support.rewards import received
from tests.support.running import prepared_warehouse
from tests.support.training import after

JOB = named_id("test", "history")


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def heartbeat(attempt: int, step: int, status: str = "running", **more: Any) -> TrainingStatus:
    """A worker's status at a train step, ten minutes of its GPU after the one before."""
    members: dict[str, Any] = {
        "progress": Progress(current_step=step) if step else None,
        "metrics": Metrics(current=CurrentMetrics(loss=10.0 * attempt + step)) if step else None,
        "resource_usage": ResourceUsage(gpu_hours=step / 6, total_training_time_seconds=600.0 * step),
        "metadata": StatusMetadata(worker="w1"),
    }
    at = after(10_000 * attempt + step)
    return TrainingStatus(training_job_id=JOB, timestamp=at, status=status, attempt=attempt, **{**members, **more})


async def store(warehouse: Warehouse, *statuses: TrainingStatus) -> None:
    table = TABLES[TrainingStatus.TOPIC]
    rows: list[Row] = [
        row_of(table, received(one, number), "made/1", after(number)) | {"body": encode(one).decode()}
        for number, one in enumerate(statuses, 1)
    ]
    await Facts(warehouse).insert(TABLES[TrainingStatus.TOPIC], rows, again=True)


async def test_each_attempt_has_its_usage_and_continues_the_curves(warehouse: Warehouse) -> None:
    blobs = MemoryBlobs()
    lines = b"".join(b'{"step": %d, "seconds": 1.0, "loss": %d}\n' % (step, 20 + step) for step in (3, 4))
    curves = blobs.put(lines, "metrics", ".jsonl").uri
    gone = heartbeat(4, 2, "failed", artifacts=Artifacts(training_curves="s3://b/metrics/collected.jsonl"))
    await store(
        warehouse,
        heartbeat(1, 0, "queued", metadata=None),  # the coordinator's own
        *(heartbeat(1, step) for step in (0, 1, 2, 3)),  # its worker vanished
        heartbeat(2, 0, "queued", metadata=None, error=TrainingError(message="worker w1 was silent for 30 s")),
        heartbeat(2, 3),
        heartbeat(2, 4, "failed", artifacts=Artifacts(training_curves=curves), error=TrainingError(message="full")),
        heartbeat(3, 5),
    )
    history = await training_history(warehouse, blobs, JOB)
    assert [(attempt.number, attempt.state, attempt.worker, attempt.error) for attempt in history.attempts] == [
        (1, "failed", "w1", "worker w1 was silent for 30 s"),
        (2, "failed", "w1", "full"),
        (3, "running", "w1", ""),
    ]
    assert [attempt.gpu_hours for attempt in history.attempts] == [3 / 6, 4 / 6, 5 / 6]
    assert [attempt.cost_usd for attempt in history.attempts] == [None] * 3
    assert curves_of(history.steps)["loss"] == [
        Point(1, 11.0),
        Point(2, 12.0),
        Point(3, 23.0),
        Point(4, 24.0),
        Point(5, 35.0),
    ]
    await store(warehouse, gone)
    history = await training_history(warehouse, blobs, JOB)
    assert curves_of(history.steps)["loss"] == [Point(1, 11.0), Point(2, 42.0)], "heartbeats stand in for the file"


async def test_a_job_without_a_worker_has_no_history(warehouse: Warehouse) -> None:
    history = await training_history(warehouse, MemoryBlobs(), named_id("test", "another"))
    assert (history.attempts, history.steps) == ([], [])


async def test_of_many_heartbeats_a_part_is_read(warehouse: Warehouse) -> None:
    last = 3 * POINTS
    await store(warehouse, *(heartbeat(1, step) for step in range(1, last + 1)))
    history = await training_history(warehouse, MemoryBlobs(), JOB)
    assert POINTS - 2 <= len(history.steps) <= POINTS + 2
    assert history.steps[0].number == 1
