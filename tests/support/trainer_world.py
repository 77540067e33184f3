"""A worker on real servers as a coordinator sees it: base model, snapshots, dispatches, and every status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from nats.js.api import ConsumerConfig, DeliverPolicy

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.tasks import end
from ratchet.bus.testing import eventually
from ratchet.core.contract import TrainingDispatch, TrainingRequest, TrainingStatus
from ratchet.core.contract.snapshot import ParquetFile
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.contract.training import (
    Checkpointing,
    Dataset,
    Evaluation,
    Hyperparameters,
    Lora,
    SnapshotRef,
    TrainingConfig,
)
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.trainer_worker.app import build
from ratchet.trainer_worker.attempt import Timing
from ratchet.trainer_worker.settings import Settings
from tests.support.running import connected, prepared_objects, running_app
from tests.support.snapshot_rows import snapshot_manifest
from tests.support.tiny_models import chat_texts, publish_tiny_model, write_tiny_model
from tests.support.trainer_runs import write_snapshot

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHILD_S = 240.0
"""A child process imports torch first, on a machine that other tests keep busy."""

FAST = Timing(heartbeat_s=0.3, watch_s=0.2, grace_s=30.0)

CHATS = [
    [
        {"role": "user", "content": f"Say {colour}."},
        {"role": "assistant", "content": f"{colour}!"},
    ]
    for colour in ("red", "green", "blue", "amber")
] * 4


@dataclass
class World:
    """The servers as a coordinator sees them, and every status that workers published."""

    bus: Bus
    objects: Objects
    settings: Settings
    base: str
    snapshot: SnapshotRef
    timing: Timing = FAST
    statuses: list[TrainingStatus] = field(default_factory=list[TrainingStatus])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def statuses_of(self, job: str) -> list[TrainingStatus]:
        return [status for status in self.statuses if status.training_job_id == job]

    async def first_status(self, job: str, test: Callable[[TrainingStatus], bool]) -> TrainingStatus:
        """The first status of `job` that passes `test`."""

        async def look() -> TrainingStatus | None:
            return next((status for status in self.statuses_of(job) if test(status)), None)

        status = await eventually(look, CHILD_S)
        assert status is not None
        return status

    async def ended(self, job: str) -> TrainingStatus:
        return await self.first_status(job, lambda status: status.status != "running")

    async def dispatch(
        self,
        name: str,
        config: TrainingConfig,
        *,
        attempt: int = 1,
        evaluation: Evaluation | None = None,
        **more: Any,
    ) -> TrainingDispatch:
        """Do what the coordinator does: the job's state first, then the work queue."""
        request = TrainingRequest(
            training_job_id=named_id("test", name),
            timestamp=NOW,
            requester="test",
            trigger_reason="manual",
            training_config=config,
            role="support",
            evaluation=evaluation,
        )
        dispatch = TrainingDispatch(
            training_job_id=request.training_job_id,
            attempt=attempt,
            pool="default",
            timestamp=NOW,
            request=request,
            **more,
        )
        await Bucket(self.bus, JOBS, Job).put(dispatch.training_job_id, job_of(dispatch))
        await self.bus.publish(dispatch)
        return dispatch

    async def change_job(self, dispatch: TrainingDispatch, **changes: Any) -> None:
        def changed(job: Job | None) -> Job:
            assert job is not None
            return msgspec.structs.replace(job, **changes)

        await Bucket(self.bus, JOBS, Job).change(dispatch.training_job_id, changed)

    def config(self, algorithm: str = "sft", **hyper: Any) -> TrainingConfig:
        values = {"learning_rate": 5e-3, "batch_size": 8, "max_steps": 6, "lora": Lora(r=4, alpha=8), **hyper}
        return TrainingConfig(
            algorithm=algorithm,
            base_model=self.base,
            dataset=Dataset(source="s3", sample_size=100, snapshot=self.snapshot),
            hyperparameters=Hyperparameters(**values),
            checkpointing=Checkpointing(save_interval=4),
        )

    def endless(self) -> TrainingConfig:
        return self.config(max_steps=1_000_000)


def job_of(dispatch: TrainingDispatch) -> Job:
    return Job(
        training_job_id=dispatch.training_job_id,
        role="support",
        algorithm=dispatch.request.training_config.algorithm,
        state="dispatched",
        priority="normal",
        created_at=NOW,
        updated_at=NOW,
        request=dispatch.request,
        attempt=dispatch.attempt,
    )


def store_snapshot(objects: Objects, file: Path, form: str | None = None) -> SnapshotRef:
    """Store rows and their manifest; a manifest without a format is one of trajectories."""
    parquet = objects.put_file(file, "snapshots", ".parquet")
    rows = ParquetFile(uri=parquet.uri, sha256=parquet.sha256, size=parquet.size)
    manifest = snapshot_manifest(parquet=rows, **({} if form is None else {"format": form}))
    ref = objects.put(msgspec.json.encode(manifest), "snapshots", ".json")
    return SnapshotRef(uri=ref.uri, digest=ref.sha256)


async def listen(bus: Bus, statuses: list[TrainingStatus], headers: list[dict[str, str]]) -> None:
    """Keep every status, and the headers it came with."""
    subscription = await bus.nc.jetstream().subscribe(
        TrainingStatus.TOPIC, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    )
    async for message in subscription.messages:
        statuses.append(msgspec.json.decode(message.data, type=TrainingStatus))
        headers.append(dict(message.headers or {}))


@asynccontextmanager
async def trainer_world(shared_settings: SharedSettings, tmp_path: Path) -> AsyncIterator[World]:
    """Everything but the worker."""
    objects = prepared_objects(shared_settings)
    base = publish_tiny_model(objects, write_tiny_model(tmp_path / "base", chat_texts(CHATS)), "support", NOW)
    rows = [{"messages": chat, "reward": 1.0} for chat in CHATS]
    snapshot = store_snapshot(objects, write_snapshot(tmp_path / "snapshot.parquet", rows))
    settings = Settings(shared=shared_settings, worker="test-worker")
    async with connected(shared_settings) as bus:
        world = World(bus, objects, settings, base.uri, snapshot)
        listening = asyncio.create_task(listen(bus, world.statuses, world.headers))
        yield world
        await end(listening)


@asynccontextmanager
async def working(world: World, settings: Settings | None = None) -> AsyncIterator[None]:
    async with running_app(build(settings or world.settings, world.timing)):
        yield


def child_of(job: str, settings: Settings | None = None) -> psutil.Process | None:
    """The training process of a job: that of our own children which works in its directory, in that of `settings`."""
    place = job if settings is None else str(settings.work / job)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if place in process.cwd():
                return process
    return None
