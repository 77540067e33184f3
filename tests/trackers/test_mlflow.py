"""Jobs and policies in a real MLflow server: found by role, copied once, aliases behind the rollout."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.policy_manifest import ADAPTER, PolicyManifest
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.contract.training import Artifacts
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.stores.policies import publish_policy, upload_files
from ratchet.extras.trackers.app import Copier
from ratchet.extras.trackers.mlflow_rest import Mlflow
from ratchet.extras.trackers.trackers.mlflow import MlflowTracker
from tests.support.blobs import MemoryBlobs
from tests.support.fake_bus import fake_bus
from tests.support.mlflow_server import PROGRAM, running_mlflow
from tests.support.training import after, job, promote, registered

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no MLflow here: `make mlflow`")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LINES = b'{"step": 1, "seconds": 2.0, "loss": 0.5, "rewards_chosen": 0.1, "accuracy": 0.6, "grad_norm": 1.0}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_mlflow(tmp_path_factory.mktemp("mlflow")) as running:
        yield running.url


class World:
    """What the tracker sees, and the server that it copies to."""

    def __init__(self, url: str, prefix: str) -> None:
        self.bus: FakeBus = fake_bus()
        self.blobs = MemoryBlobs()
        self.prefix = prefix
        self._url = url

    def ask(self, method: str, path: str, *, params: dict[str, str] | None = None, json: Any = None) -> Any:
        """What the server answers, asked without any code of ours."""
        return httpx.request(method, f"{self._url}/api/2.0/mlflow{path}", params=params, json=json, timeout=60).json()

    async def copy(self) -> None:
        """One look of a tracker that was started just now."""
        jobs, policies = Bucket(self.bus, JOBS, Job), Bucket(self.bus, POLICIES, PolicyVersion)
        routes = Bucket(self.bus, POLICIES, Route)
        async with AsyncApiClient(Peer("the MLflow server", self._url)) as client:
            tracker = MlflowTracker(Mlflow(client), self.blobs, self.prefix)
            await Copier(jobs, policies, routes, tracker).copy()

    def runs(self) -> list[dict[str, Any]]:
        query = {"experiment_name": f"{self.prefix}_support"}
        experiment = self.ask("GET", "/experiments/get-by-name", params=query)["experiment"]["experiment_id"]
        return self.ask("POST", "/runs/search", json={"experiment_ids": [experiment]}).get("runs", [])

    def model(self) -> dict[str, Any]:
        query = {"name": f"{self.prefix}_support"}
        return self.ask("GET", "/registered-models/get", params=query)["registered_model"]

    def history(self, run: dict[str, Any], key: str) -> list[tuple[int, float]]:
        query = {"run_id": run["info"]["run_id"], "metric_key": key}
        points = self.ask("GET", "/metrics/get-history", params=query).get("metrics", [])
        return [(int(point["step"]), point["value"]) for point in points]


def trained(world: World, directory: Path) -> Job:
    """A completed job with its policy, card and curves."""
    directory.mkdir()
    (directory / "README.md").write_text("# card")
    documents = upload_files(world.blobs, directory)
    manifest = PolicyManifest(
        kind=ADAPTER, base_model="org/model", files=[], role="support", created_at=NOON, documents=documents
    )
    policy = publish_policy(world.blobs, manifest)
    curves = world.blobs.put(LINES, "metrics", ".jsonl")
    return job(
        state="completed",
        started_at=after(1),
        finished_at=after(60),
        artifacts=Artifacts(final_checkpoint=policy.uri, training_curves=curves.uri),
    )


async def test_a_job_is_one_run_however_often_the_tracker_starts(server: str, tmp_path: Path) -> None:
    world = World(server, "runs")
    done = trained(world, tmp_path / "documents")
    jobs: Any = Bucket(world.bus, JOBS, Job)
    await jobs.put(done.training_job_id, msgspec.structs.replace(done, state="running", artifacts=None))
    await world.copy()
    assert [run["info"]["status"] for run in world.runs()] == ["RUNNING"]
    await jobs.put(done.training_job_id, done)
    await world.copy()
    await world.copy()
    (run,) = world.runs()
    assert run["info"]["status"] == "FINISHED"
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert (tags["agent_role"], tags["training_type"]) == ("support", "rloo")
    assert {param["key"] for param in run["data"]["params"]} >= {"learning_rate", "batch_size", "algorithm"}
    assert world.history(run, "train_loss") == [(1, 0.5)]
    for key, value in (("implicit_reward", 0.1), ("accuracy", 0.6), ("grad_norm", 1.0)):
        assert world.history(run, key) == [(1, value)]
    query = {"run_id": run["info"]["run_id"]}
    files = {file["path"] for file in world.ask("GET", "/artifacts/list", params=query)["files"]}
    assert files == {"README.md", "metrics.jsonl"}


async def test_aliases_follow_the_rollout(server: str) -> None:
    world = World(server, "aliases")
    policies = Bucket(world.bus, POLICIES, PolicyVersion)
    await promote(world.bus, registered(1, stage="stable"))
    await policies.put("support.2", registered(2))
    await world.copy()
    assert {alias["alias"]: alias["version"] for alias in world.model()["aliases"]} == {
        "production": "1",
        "staging": "2",
    }
    await promote(world.bus, registered(2, stage="stable"))
    await policies.put("support.1", registered(1, stage="archived"))
    await world.copy()
    await world.copy()
    assert {alias["alias"]: alias["version"] for alias in world.model()["aliases"]} == {"production": "2"}
    query = {"filter": f"name='{world.prefix}_support'"}
    versions = world.ask("GET", "/model-versions/search", params=query)["model_versions"]
    stages = {
        version["version"]: {tag["key"]: tag["value"] for tag in version["tags"]}["ratchet.stage"]
        for version in versions
    }
    assert stages == {"1": "archived", "2": "stable"}
