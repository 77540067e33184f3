"""The worker on a real broker and object store, with real training processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import psutil
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.training import Checkpointing, Evaluation, Hyperparameters, Lora
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import fetch_policy, read_policy
from ratchet.trainer_worker.child_process import Child
from ratchet.trainer_worker.fork_server import PRELOAD, ForkServer
from ratchet.trainer_worker.job import JOB_FILE, RESULT, Failed, Finished, write_job
from tests.support.forked_trainings import forked_trainings, own_server
from tests.support.stored_values import check_objects
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.trainer_runs import job_spec, write_snapshot
from tests.support.trainer_world import CHATS, CHILD_S, World, child_of, trainer_world, working

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(shared_settings: SharedSettings, tmp_path: Path) -> AsyncIterator[World]:
    async with trainer_world(shared_settings, tmp_path) as world:
        yield world


@pytest.mark.timeout(300)
async def test_dispatch_becomes_an_addressed_adapter_that_can_be_continued(world: World, tmp_path: Path) -> None:
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
    assert b"brain.Event:2" in world.objects.get(str(done.artifacts.tensorboard_logs))
    assert done.progress is not None
    assert done.progress.percent_complete == 100.0
    assert done.resource_usage is not None
    assert (done.resource_usage.peak_memory_gb or 0) > 0
    assert (done.resource_usage.tokens or 0) > 0
    assert done.metadata is not None
    assert (done.metadata.worker, done.metadata.training_samples) == ("test-worker", len(CHATS))
    running = [status for status in world.statuses_of(dispatch.training_job_id) if status.status == "running"]
    assert running[0].progress is None
    assert {headers["ce-causationid"] for headers in world.headers} == {dispatch.event_id}
    assert len({headers["ce-correlationid"] for headers in world.headers}) == 1
    assert not (world.settings.work / f"{dispatch.training_job_id}-1").exists()
    await _continue_twice(world, done)


async def _continue_twice(world: World, done: TrainingStatus) -> None:
    """The adapter is continued, and its dispatch, which comes twice, is one run."""
    assert done.artifacts is not None
    async with working(world):
        config = msgspec.structs.replace(world.config(lora=None), base_model=str(done.artifacts.final_checkpoint))
        second = await world.dispatch("second", config)
        # The broker's own deduplication is stepped around: this is the coordinator's rescue after a long outage.
        await world.bus.publish_record(world.bus.seal(second).with_message_id("another"))
        again = await world.ended(second.training_job_id)

        async def drained() -> bool:
            return (await world.bus.nc.jetstream().stream_info("RL_JOBS")).state.messages == 0

        await eventually(drained, CHILD_S)
    assert again.status == "completed", again.error
    assert again.artifacts is not None
    manifest = read_policy(world.objects, str(again.artifacts.final_checkpoint)).manifest
    assert manifest.parent == done.artifacts.final_checkpoint
    assert manifest.base_model == world.base
    ends = [status for status in world.statuses_of(second.training_job_id) if status.status != "running"]
    assert len(ends) == 1


@pytest.mark.timeout(300)
async def test_a_job_reports_what_it_gained_on_tasks_that_it_held_out(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("held", world.config(), evaluation=Evaluation(holdout_size=0.25))
        done = await world.ended(dispatch.training_job_id)
    assert done.status == "completed", done.error
    assert done.evaluation_results is not None
    scores = done.evaluation_results.benchmark_scores or {}
    assert done.metadata is not None
    assert (done.metadata.training_samples or 0) + scores["holdout_tries"] == len(CHATS)
    assert scores["improvement_low"] < (done.evaluation_results.improvement_over_baseline or 0)
    assert done.artifacts is not None
    card = world.objects.get(str(done.artifacts.model_card)).decode()
    assert "improvement_over_baseline" in card


@pytest.mark.timeout(300)
async def test_second_cancel_ends_the_training_without_a_checkpoint(world: World) -> None:
    config = msgspec.structs.replace(world.endless(), checkpointing=Checkpointing(save_interval=1_000_000))
    async with working(world):
        dispatch = await world.dispatch("cancelled-now", config)
        await world.first_status(dispatch.training_job_id, lambda status: status.progress is not None)
        child = child_of(dispatch.training_job_id)
        assert child is not None
        child.suspend()  # it does not answer the first stage: its train step takes very long
        try:
            await world.change_job(dispatch, cancel_requested=True)
            await world.first_status(dispatch.training_job_id, lambda status: status.stopping == "after_step")
            await world.change_job(dispatch, cancel_requested=True, cancel_now=True)
            stopped = await world.ended(dispatch.training_job_id)
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    assert (stopped.status, stopped.stopping) == ("cancelled", "now")
    assert stopped.artifacts is None or stopped.artifacts.checkpoint is None


@pytest.mark.timeout(300)
async def test_a_cancelled_job_stops_by_itself_and_can_be_resumed(world: World) -> None:
    # The interval never comes: a checkpoint shows that the job stopped in order, before it would be killed.
    config = msgspec.structs.replace(world.endless(), checkpointing=Checkpointing(save_interval=1_000_000))
    async with working(world):
        dispatch = await world.dispatch("cancelled", config)
        await world.first_status(dispatch.training_job_id, lambda status: status.progress is not None)
        await world.change_job(dispatch, cancel_requested=True)
        stopped = await world.ended(dispatch.training_job_id)
        assert stopped.status == "cancelled"
        assert stopped.artifacts is not None
        checkpoint = stopped.artifacts.checkpoint
        assert checkpoint is not None
        reached = json.loads(world.objects.get(checkpoint))["step"]

        config = world.config(max_steps=reached + 5)
        resumed = await world.dispatch("cancelled", config, attempt=2, resume_from=checkpoint)
        done = await world.first_status(
            resumed.training_job_id, lambda status: status.attempt == 2 and status.status != "running"
        )
    assert done.status == "completed", done.error
    assert done.artifacts is not None
    lines = world.objects.get(str(done.artifacts.training_curves)).decode().splitlines()
    assert json.loads(lines[0])["step"] == reached + 1
    stored = await asyncio.to_thread(check_objects, world.objects, "policies")
    assert stored == {"policy.manifest.v1"}


async def test_a_killed_training_process_is_an_infrastructure_failure(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("killed", world.endless())
        await world.first_status(dispatch.training_job_id, lambda status: status.progress is not None)
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
        await world.first_status(dispatch.training_job_id, lambda status: status.progress is not None)
        await world.change_job(dispatch, attempt=2)

        async def gone() -> bool:
            return child_of(dispatch.training_job_id) is None

        await eventually(gone, CHILD_S)
        # The slot is free again, and the next job's status arrives: the fenced one could have published.
        other = await world.dispatch("after", world.config("sft", gamma=0.9))
        assert (await world.ended(other.training_job_id)).status == "failed"
    assert {status.status for status in world.statuses_of(dispatch.training_job_id)} == {"running"}
    assert [uri for uri in world.objects.list("policies/") if uri != world.base] == []


@pytest.mark.timeout(300)
async def test_of_two_workers_of_one_name_on_two_machines_one_has_an_attempt(world: World, tmp_path: Path) -> None:
    here, there = (world.settings.model_copy(update={"shared": at(world, tmp_path / name)}) for name in ("a", "b"))
    async with working(world, here), working(world, there):
        dispatch = await world.dispatch("twins", world.endless())
        job = dispatch.training_job_id

        async def both() -> bool:
            # The broker delivers a dispatch again when it has not heard of the first worker for a while.
            await world.bus.publish_record(world.bus.seal(dispatch).with_message_id(uuid4().hex))
            return None not in (child_of(job, here), child_of(job, there))

        await eventually(both, CHILD_S)
        first = (await world.first_status(job, lambda status: status.status == "running")).metadata
        assert first is not None
        await world.change_job(dispatch, state="running", worker=first.worker, instance=first.instance)

        async def one() -> bool:
            return (child_of(job, here) is None) != (child_of(job, there) is None)

        await eventually(one, CHILD_S)
        await world.change_job(dispatch, cancel_requested=True)
        end = await world.ended(job)
    assert end.status == "cancelled"
    assert end.metadata is not None
    assert (end.metadata.worker, end.metadata.instance) == (first.worker, first.instance)
    assert [status.status for status in world.statuses_of(job)].count("cancelled") == 1


def at(world: World, data_dir: Path) -> SharedSettings:
    """The same servers, seen from another machine."""
    return world.settings.shared.model_copy(update={"data_dir": data_dir})


@pytest.mark.timeout(300)
async def test_a_forked_training_and_a_fresh_process_make_the_same_policy(tmp_path: Path) -> None:
    base = write_tiny_model(tmp_path / "base", chat_texts(CHATS))
    dataset = write_snapshot(tmp_path / "chats.parquet", [{"messages": chat, "reward": 1.0} for chat in CHATS])
    spec = job_spec("sft", str(base), str(dataset), hyper=Hyperparameters(max_steps=4, seed=3, lora=Lora(r=4)))
    made: list[bytes] = []
    with own_server(PRELOAD):
        for name, warm in (("forked", ForkServer()), ("fresh", None)):
            (tmp_path / name).mkdir()
            child = await Child.start(spec, tmp_path / name, warm)
            *_, last = [event async for event in child.events()]
            assert isinstance(last, Finished), last
            assert (await child.wait()).code == 0
            made.append((tmp_path / name / RESULT / "adapter_model.safetensors").read_bytes())
    assert made[0] == made[1]


@pytest.mark.timeout(300)
def test_a_forked_training_that_gets_no_memory_fails_as_such(tmp_path: Path) -> None:
    base = write_tiny_model(tmp_path / "base", chat_texts(CHATS))
    dataset = write_snapshot(tmp_path / "chats.parquet", [{"messages": chat, "reward": 1.0} for chat in CHATS])
    (tmp_path / "job").mkdir()
    os.mkfifo(tmp_path / "job" / JOB_FILE)
    with forked_trainings() as forks:
        training = forks.begin(tmp_path / "job")  # it waits for its job file
        process = psutil.Process(training.pid)
        opened = os.open(tmp_path / "job" / JOB_FILE, os.O_WRONLY)  # once it reads: its threads have begun
        most = process.memory_info().vms + 1_000_000
        process.rlimit(psutil.RLIMIT_AS, (most, most))
        write_job(tmp_path / "job", job_spec("sft", str(base), str(dataset)))
        os.close(opened)
        *_, last = training.events()
        assert isinstance(last, Failed)
        assert last.code == "OOM", last
        assert training.code() == 1


async def test_a_worker_that_shuts_down_hands_its_job_back_with_a_checkpoint(world: World) -> None:
    async with working(world):
        dispatch = await world.dispatch("shutdown", world.endless())
        await world.first_status(dispatch.training_job_id, lambda status: status.progress is not None)
    handed_back = await world.ended(dispatch.training_job_id)
    assert handed_back.status == "cancelled"
    assert handed_back.artifacts is not None
    assert handed_back.artifacts.checkpoint is not None
    assert child_of(dispatch.training_job_id) is None


async def test_jobs_that_cannot_be_trained_fail_with_their_reason(world: World) -> None:
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
