"""Trainings of planners: from executions and the planner that serves to a bundle that names the new file."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.bundle import Bundle, Instructions
from ratchet.core.contract.policy_manifest import BUNDLE, PolicyManifest
from ratchet.core.contract.snapshot import ParquetFile
from ratchet.core.contract.training import Hyperparameters, SnapshotRef
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.datasets.domain.executions import execution_row
from ratchet.core.errors import Rejected
from ratchet.core.planning.files import load_planner, read_file
from ratchet.core.planning.learned import TEST, execution_digest, part_of
from ratchet.core.stores.policies import Policy, publish_policy
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import METRICS_FILE, Event, Finished, JobSpec, Stopped
from ratchet.trainer_worker.s3_artifacts import Base, fetch_planning, store_policy
from ratchet.trainer_worker.training.planning.planner_run import train
from tests.support.blobs import MemoryBlobs
from tests.support.executions import CAPABLE, PLAN, execution, run_of
from tests.support.snapshot_rows import snapshot_manifest, write_rows
from tests.support.trainer_inputs import NOW
from tests.support.training import request

LOGGED = [execution(number, runs=tuple(run_of(CAPABLE[number % 3]) for _ in PLAN.sub_tasks)) for number in range(24)]
LEARNABLE = [one for one in LOGGED if part_of(one.workflow_id) != TEST]
QUICK = Hyperparameters(epochs=2, batch_size=8, seed=1)


def dispatched(
    blobs: MemoryBlobs, folder: Path, algorithm: str, base: str = "stable", **changes: Any
) -> TrainingDispatch:
    """A job of these executions; `hyper` are its hyperparameters."""
    executions: list[WorkflowExecution] = changes.pop("executions", LOGGED)
    folder.mkdir(parents=True, exist_ok=True)
    path = write_rows(folder / "written.parquet", [execution_row(one, None) for one in executions])
    rows = blobs.put(path.read_bytes(), "snapshots", ".parquet")
    manifest = snapshot_manifest(
        parquet=ParquetFile(uri=rows.uri, sha256=rows.sha256, size=rows.size), format="executions", role="planner"
    )
    stored = blobs.put(msgspec.json.encode(manifest), "snapshots", ".json")
    asked = request()
    config = replace(
        asked.training_config,
        algorithm=algorithm,
        base_model=base,
        dataset=replace(asked.training_config.dataset, snapshot=SnapshotRef(uri=stored.uri, digest=stored.sha256)),
        hyperparameters=changes.pop("hyper", Hyperparameters()),
    )
    return TrainingDispatch(
        training_job_id=asked.training_job_id,
        request=replace(asked, role="planner", training_config=config),
        attempt=1,
        pool="default",
        timestamp=NOW,
    )


def run(spec: JobSpec, folder: Path, stop: threading.Event | None = None) -> Event:
    return train(spec, folder, io.BytesIO(), stop or threading.Event(), threading.Event())


def trained(blobs: MemoryBlobs, folder: Path, algorithm: str, base: str = "stable", **changes: Any) -> Policy:
    """The policy of a job, from its dispatch to its manifest."""
    job = dispatched(blobs, folder, algorithm, base, **changes)
    spec, nothing = fetch_planning(blobs, job, folder, threads=1)
    end = run(spec, folder)
    assert isinstance(end, Finished), end
    return store_policy(blobs, job, nothing, end, NOW)


def planner_of(blobs: MemoryBlobs, policy: Policy) -> bytes:
    assert policy.manifest.bundle is not None
    planner = policy.manifest.bundle.planner
    assert planner is not None
    return blobs.get(planner.uri, planner.sha256)


@pytest.mark.parametrize("algorithm", ["planner_supervised", "selector_linucb", "selector_thompson"])
def test_planner_is_a_bundle_that_names_its_file(tmp_path: Path, algorithm: str) -> None:
    blobs = MemoryBlobs()
    hyper = QUICK if algorithm == "planner_supervised" else Hyperparameters()
    policy = trained(blobs, tmp_path / "job", algorithm, hyper=hyper)
    assert (policy.manifest.kind, policy.manifest.files, policy.manifest.algorithm) == (BUNDLE, [], algorithm)
    assert policy.manifest.bundle == Bundle(planner=policy.manifest.bundle and policy.manifest.bundle.planner)
    planner = load_planner(planner_of(blobs, policy))
    assert planner.trained_on == {execution_digest(one.workflow_id) for one in LEARNABLE}
    assert policy.manifest.training_samples == len(LEARNABLE)
    assert (tmp_path / "job" / METRICS_FILE).read_bytes().count(b"\n") >= 1


def test_policy_gradient_continues_the_planner_that_serves(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    first = trained(blobs, tmp_path / "first", "planner_supervised", hyper=QUICK, executions=LOGGED[:20])
    second = trained(
        blobs, tmp_path / "second", "planner_ppo", first.uri, hyper=Hyperparameters(epochs=1), executions=LOGGED[20:]
    )
    before, after = (read_file(planner_of(blobs, policy)) for policy in (first, second))
    assert set(after.description.trained_on) == {execution_digest(one.workflow_id) for one in LEARNABLE}
    assert (before.tensors["plan.text"] == after.tensors["plan.text"]).all()
    assert (before.tensors["select.out"] != after.tensors["select.out"]).any()
    assert 0 < second.manifest.metrics["ess"] <= 1


def test_policy_gradient_without_a_planner_names_what_is_missing(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    spec, _ = fetch_planning(blobs, dispatched(blobs, tmp_path, "planner_ppo"), tmp_path, threads=1)
    with pytest.raises(DataUnusable, match="planner_supervised"):
        run(spec, tmp_path)


def test_training_of_planners_continues_no_bundle_of_calls(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    prompts = PolicyManifest(
        kind=BUNDLE,
        base_model="",
        files=[],
        role="planner",
        created_at=NOW,
        bundle=Bundle(instructions=Instructions(text="Be brief.")),
    )
    served = publish_policy(blobs, prompts)
    with pytest.raises(Rejected, match="plans no workflows"):
        fetch_planning(blobs, dispatched(blobs, tmp_path, "selector_linucb", served.uri), tmp_path, threads=1)


def test_planner_file_that_was_damaged_is_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    spec, _ = fetch_planning(blobs, dispatched(blobs, tmp_path, "selector_linucb"), tmp_path, threads=1)
    (tmp_path / "cut.safetensors").write_bytes(b"{}")
    with pytest.raises(DataUnusable, match="truncated or not a safetensors file"):
        run(msgspec.structs.replace(spec, planner=str(tmp_path / "cut.safetensors")), tmp_path)


def test_training_of_a_planner_stops_between_epochs(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    job = dispatched(blobs, tmp_path, "planner_supervised", hyper=QUICK)
    spec, base = fetch_planning(blobs, job, tmp_path, threads=1)
    stop = threading.Event()
    stop.set()
    assert (run(spec, tmp_path, stop), base) == (Stopped(step=1), Base("", "", None, None))
