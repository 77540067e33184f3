"""The worker on a real broker and object store, with real training processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy

from ratchet.kernel.artifacts import fetch_policy, read_policy
from ratchet.kernel.bus import Bus
from ratchet.kernel.objects import Objects
from ratchet.kernel.settings import KernelSettings
from ratchet.messages import TrainingDispatch, TrainingRequest, TrainingStatus
from ratchet.messages.base import named_id
from ratchet.messages.state import JOBS, Job
from ratchet.messages.training import (
    Checkpointing,
    Dataset,
    Hyperparameters,
    Lora,
    SnapshotRef,
    TrainingConfig,
)
from ratchet.trainer_worker.app import build
from ratchet.trainer_worker.settings import Settings
from tests.support.running import connected, prepared_objects, running_app
from tests.support.tiny_models import chat_texts, publish_tiny_model, write_tiny_model
from tests.support.trainer_runs import write_snapshot
from tests.support.waiting import eventually

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHILD_S = 90.0
"""A child process imports torch first, on a machine that other tests keep busy."""

CHATS = [
    [
        {"role": "user", "content": f"Say {colour}."},
        {"role": "assistant", "content": f"{colour}!"},
    ]
    for colour in ("red", "green", "blue", "amber")
] * 4


@dataclass
class World:
    """The servers as a coordinator sees them, and everything that workers have said."""

    bus: Bus
    objects: Objects
    settings: Settings
    base: str
    snapshot: SnapshotRef
    statuses: list[TrainingStatus] = field(default_factory=list)

    def said(self, job: str) -> list[TrainingStatus]:
        return [status for status in self.statuses if status.training_job_id == job]

    async def told(self, job: str, test: Callable[[TrainingStatus], bool]) -> TrainingStatus:
        """The first status of `job` that passes `test`."""

        async def look() -> TrainingStatus | None:
            return next((status for status in self.said(job) if test(status)), None)

        found = await eventually(look, CHILD_S)
        assert found is not None
        return found

    async def ended(self, job: str) -> TrainingStatus:
        return await self.told(job, lambda status: status.status != "running")

    async def dispatch(self, name: str, config: TrainingConfig, *, attempt: int = 1, **more: Any) -> TrainingDispatch:
        """Do what the coordinator does: the job's state first, then the work queue."""
        request = TrainingRequest(
            training_job_id=named_id("test", name),
            timestamp=NOW,
            requester="test",
            trigger_reason="manual",
            training_config=config,
            role="support",
        )
        dispatch = TrainingDispatch(
            training_job_id=request.training_job_id,
            attempt=attempt,
            pool="default",
            timestamp=NOW,
            request=request,
            **more,
        )
        await self.bus.bucket(JOBS, Job).put(dispatch.training_job_id, job_of(dispatch))
        await self.bus.publish(dispatch)
        return dispatch

    async def change_job(self, dispatch: TrainingDispatch, **changes: Any) -> None:
        def changed(job: Job | None) -> Job:
            assert job is not None
            return msgspec.structs.replace(job, **changes)

        await self.bus.bucket(JOBS, Job).change(dispatch.training_job_id, changed)

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


def store_snapshot(objects: Objects, directory: Path, trajectories: Sequence[dict[str, Any]]) -> SnapshotRef:
    parquet = objects.put_file(write_snapshot(directory / "snapshot.parquet", trajectories), "snapshots", ".parquet")
    manifest = {"kind": "snapshot", "parquet": {"uri": parquet.uri, "sha256": parquet.sha256, "size": parquet.size}}
    ref = objects.put(json.dumps(manifest).encode(), "snapshots", ".json")
    return SnapshotRef(uri=ref.uri, digest=ref.sha256)


async def listen(bus: Bus, statuses: list[TrainingStatus]) -> None:
    subscription = await bus.nc.jetstream().subscribe(
        TrainingStatus.TOPIC, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    )
    async for message in subscription.messages:
        status = msgspec.json.decode(message.data, type=TrainingStatus)
        statuses.append(status)


@pytest.fixture
async def world(kernel_settings: KernelSettings, tmp_path: Path) -> AsyncIterator[World]:
    objects = prepared_objects(kernel_settings)
    base = publish_tiny_model(objects, write_tiny_model(tmp_path / "base", chat_texts(CHATS)), "support", NOW)
    snapshot = store_snapshot(objects, tmp_path, [{"messages": chat, "reward": 1.0} for chat in CHATS])
    settings = Settings(kernel=kernel_settings, heartbeat_s=0.3, watch_s=0.2, grace_s=30.0, worker="test-worker")
    async with connected(kernel_settings) as bus:
        world = World(bus, objects, settings, base.uri, snapshot)
        listening = asyncio.create_task(listen(bus, world.statuses))
        yield world
        listening.cancel()


@asynccontextmanager
async def working(world: World) -> AsyncIterator[None]:
    async with running_app(build(world.settings)):
        yield


def child_of(job: str) -> psutil.Process | None:
    """The training process of a job, found among our own children."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(job in part for part in process.cmdline()):
                return process
    return None


@pytest.mark.timeout(300)
async def test_a_dispatch_becomes_a_content_addressed_adapter_and_that_can_be_continued(
    world: World, tmp_path: Path
) -> None:
    async with working(world):
        dispatch = await world.dispatch("adapter", world.config())
        done = await world.ended(dispatch.training_job_id)
    assert done.status == "completed", done.error
    assert done.artifacts is not None
    assert done.artifacts.kind == "adapter"
    policy = read_policy(world.objects, str(done.artifacts.final_checkpoint))
    assert policy.digest == done.artifacts.digest
    manifest = policy.manifest
    assert manifest.base_model == world.base
    assert (manifest.algorithm, manifest.attempt, manifest.training_samples) == ("sft", 1, len(CHATS))
    assert manifest.dataset_digest == world.snapshot.digest == done.dataset_digest
    assert manifest.probe is not None
    assert len(manifest.probe.logprobs) == len(manifest.probe.output_token_ids) > 0
    local = fetch_policy(world.objects, policy.uri, tmp_path / "cache")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in local.directory.iterdir()}

    lines = world.objects.get(str(done.artifacts.training_curves)).decode().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert done.progress is not None
    assert done.progress.percent_complete == 100.0
    assert done.resource_usage is not None
    assert (done.resource_usage.peak_memory_gb or 0) > 0
    assert done.metadata is not None
    assert (done.metadata.worker, done.metadata.training_samples) == ("test-worker", len(CHATS))
    running = [status for status in world.said(dispatch.training_job_id) if status.status == "running"]
    assert running[0].progress is None
    assert len(running) > 3
    assert not (world.settings.work / f"{dispatch.training_job_id}-1").exists()
    await _continue_twice(world, done)


async def _continue_twice(world: World, done: TrainingStatus) -> None:
    """The adapter is continued, and its dispatch, which comes twice, is one run."""
    assert done.artifacts is not None
    async with working(world):
        config = msgspec.structs.replace(world.config(lora=None), base_model=str(done.artifacts.final_checkpoint))
        second = await world.dispatch("second", config)
        # The broker's own deduplication is stepped around: this is the coordinator's rescue after a long outage.
        subject, headers, body = world.bus.seal(second)
        await world.bus.publish_raw(subject, {**headers, "Nats-Msg-Id": "another"}, body)
        again = await world.ended(second.training_job_id)

        async def drained() -> bool:
            return (await world.bus.nc.jetstream().stream_info("RL_JOBS")).state.messages == 0

        await eventually(drained, CHILD_S)
    assert again.status == "completed", again.error
    assert again.artifacts is not None
    manifest = read_policy(world.objects, str(again.artifacts.final_checkpoint)).manifest
    assert manifest.parent == done.artifacts.final_checkpoint
    assert manifest.base_model == world.base
    ends = [status for status in world.said(second.training_job_id) if status.status != "running"]
    assert len(ends) == 1


@pytest.mark.timeout(300)
async def test_a_cancelled_job_stops_within_seconds_and_can_be_resumed(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("cancelled", world.endless())
        await world.told(dispatch.training_job_id, lambda status: status.progress is not None)
        await world.change_job(dispatch, cancel_requested=True)
        asked = asyncio.get_running_loop().time()
        stopped = await world.ended(dispatch.training_job_id)
        assert asyncio.get_running_loop().time() - asked < 15
        assert stopped.status == "cancelled"
        assert stopped.artifacts is not None
        checkpoint = stopped.artifacts.checkpoint
        assert checkpoint is not None
        assert stopped.progress is not None
        reached = stopped.progress.current_step or 0

        config = world.config(max_steps=reached + 5)
        resumed = await world.dispatch("cancelled", config, attempt=2, resume_from=checkpoint)
        done = await world.told(
            resumed.training_job_id, lambda status: status.attempt == 2 and status.status != "running"
        )
    assert done.status == "completed", done.error
    assert done.artifacts is not None
    lines = world.objects.get(str(done.artifacts.training_curves)).decode().splitlines()
    assert json.loads(lines[0])["step"] > 1


async def test_a_killed_training_process_is_an_infrastructure_failure(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("killed", world.endless())
        await world.told(dispatch.training_job_id, lambda status: status.progress is not None)
        child = child_of(dispatch.training_job_id)
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        failed = await world.ended(dispatch.training_job_id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "INFRA"
    assert "SIGKILL" in failed.error.message


async def test_a_fenced_attempt_falls_silent_and_leaves_no_policy(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("fenced", world.endless())
        await world.told(dispatch.training_job_id, lambda status: status.progress is not None)
        await world.change_job(dispatch, attempt=2)

        async def gone() -> bool:
            return child_of(dispatch.training_job_id) is None

        await eventually(gone, CHILD_S)
        # The slot is free again, and what comes next is heard: so silence was not for want of a voice.
        other = await world.dispatch("after", world.config("sft", gamma=0.9))
        assert (await world.ended(other.training_job_id)).status == "failed"
    assert {status.status for status in world.said(dispatch.training_job_id)} == {"running"}
    assert [uri for uri in world.objects.list("policies/") if uri != world.base] == []


async def test_a_worker_that_shuts_down_hands_its_job_back_with_a_checkpoint(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("shutdown", world.endless())
        await world.told(dispatch.training_job_id, lambda status: status.progress is not None)
    handed_back = await world.ended(dispatch.training_job_id)
    assert handed_back.status == "cancelled"
    assert handed_back.artifacts is not None
    assert handed_back.artifacts.checkpoint is not None
    assert child_of(dispatch.training_job_id) is None


async def test_what_cannot_be_trained_fails_with_its_reason(world: World) -> None:
    async with working(world):
        impossible = await world.dispatch("impossible", world.config("sft", gamma=0.9))
        first = await world.ended(impossible.training_job_id)
        nothing = await world.dispatch("nothing", world.config("rloo", lora=None))
        second = await world.ended(nothing.training_job_id)
    assert (first.status, second.status) == ("failed", "failed")
    assert first.error is not None
    assert (first.error.code, first.error.message) == ("DATA", "sft has no hyperparameter gamma")
    assert second.error is not None
    assert second.error.code == "DATA"
    assert "no calls were captured" in second.error.message
