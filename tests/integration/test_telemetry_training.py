"""Telemetry to a policy on real servers: spans come in, and what was said in them trains what needs no token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.message import decode
from ratchet.bus.testing import eventually
from ratchet.core.contract.policy_manifest import ADAPTER
from ratchet.core.contract.snapshot import SnapshotManifest
from ratchet.core.contract.spans import run_id
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import read_policy
from ratchet.dialects.telemetry.otlp import JSON
from ratchet.local.engine_local.s3_policies import PolicyLoader
from ratchet.reward_computer.app import build as build_rewards
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.rl_coordinator.app import build as build_coordinator
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings
from ratchet.trainer_worker.app import build as build_worker
from ratchet.trainer_worker.settings import Settings as WorkerSettings
from tests.integration.test_telemetry import Clock, collecting, count, post
from tests.support.coordinator import QUICK
from tests.support.gateway_scene import ROLE, Scene, scene
from tests.support.running import http_client, prepared_objects, running_app
from tests.support.servers import Broker
from tests.support.telemetry import Traced, traced
from tests.support.tiny_models import publish_tiny_model, write_tiny_model
from tests.support.trainer_world import CHILD_S, FAST, NOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RUNS = 8
"""Every other one is disliked."""


@asynccontextmanager
async def training(shared: SharedSettings) -> AsyncIterator[httpx.AsyncClient]:
    """The coordinator's API, with a worker that trains what is dispatched."""
    coordinator = CoordinatorSettings(shared=shared, port=0, minimum_rows=2)
    worker = WorkerSettings(shared=shared, worker="worker")
    async with (
        running_app(build_rewards(RewardSettings(shared=shared, linger_s=0.02))),
        running_app(build_coordinator(coordinator, QUICK)) as app,
        running_app(build_worker(worker, FAST)),
    ):
        server = next(part for part in app.components if isinstance(part, HttpServer))
        async with http_client(base_url=f"http://127.0.0.1:{server.port}") as api:
            yield api


async def report(here: Scene, runs: Sequence[Traced]) -> None:
    """Send the runs as an agent's SDK does, and what an evaluator says of them."""
    for number, run in enumerate(runs):
        assert (await post(here, "traces", run.protobuf)).status_code == 200
        label = "fail" if number % 2 else "pass"
        judgement = run.evaluation("helpful", value=float(label == "pass"), label=label)
        assert (await post(here, "logs", judgement, content_type=JSON)).status_code == 200


async def trained(api: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    """A job that has ended."""
    made = await api.post("/v1/jobs", json=asked)
    assert made.status_code == 201, made.text

    async def ended() -> dict[str, Any] | None:
        job = (await api.get(f"/v1/jobs/{made.json()['training_job_id']}")).json()
        return job if job["state"] in ("completed", "failed") else None

    job = await eventually(ended, CHILD_S)
    assert job is not None
    assert job["state"] == "completed", job
    return job


async def test_telemetry_trains_a_policy_and_policy_gradients_are_refused(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    objects = prepared_objects(shared_settings)
    runs = [traced(f"run {number}", calls=2) for number in range(RUNS)]
    texts = [f"task run {number} answer {number} and {number}?" for number in range(RUNS)]
    base = publish_tiny_model(objects, write_tiny_model(tmp_path / "base", texts), ROLE, NOW)
    asked: dict[str, Any] = {
        "base_model": base.uri,
        "role": ROLE,
        "hyperparameters": {"learning_rate": 5e-3, "batch_size": 4, "max_steps": 4, "lora": {"r": 4, "alpha": 8}},
    }
    clock = Clock()
    async with (
        scene(nats, tmp_path, other_role=ROLE) as here,
        collecting(shared_settings, clock) as warehouse,
        training(shared_settings) as api,
    ):
        await report(here, runs)
        await count(warehouse, "spans", 2 * RUNS)
        clock.ahead = timedelta(minutes=2)
        await count(warehouse, "trajectories", RUNS)
        await count(warehouse, "feedback", RUNS)

        async def liked() -> bool:
            totals = await warehouse.rows("SELECT total FROM latest_rewards")
            return sorted(row["total"] for row in totals) == [0.0] * (RUNS // 2) + [1.0] * (RUNS // 2)

        await eventually(liked)
        for algorithm in ("grpo", "ppo", "reinforce", "rloo"):
            refused = await api.post("/v1/jobs", json={**asked, "algorithm": algorithm})
            reason = refused.json()["error"]["message"]
            assert refused.status_code == 409
            assert reason.startswith(f"none of {RUNS} rewarded trajectories of role {ROLE} can be used by {algorithm}")
            assert reason.endswith(f": no_trainable_call {RUNS}")
        good = {"min_reward": 0.5, "sources": ["telemetry"]}
        taught = await trained(api, algorithm="sft", dataset={"sample_size": 20, "filter": good}, **asked)
        thumbs = await trained(api, algorithm="kto", dataset={"sample_size": 20}, **asked)
    liked_runs = [run_id(run.id) for run in runs[::2]]
    assert sorted(learned_from(objects, taught).trajectories) == sorted(liked_runs)
    assert sorted(learned_from(objects, thumbs).trajectories) == sorted(run_id(run.id) for run in runs)
    for job in (taught, thumbs):
        check_policy(objects, job, tmp_path / job["algorithm"])


def learned_from(objects: Objects, job: dict[str, Any]) -> SnapshotManifest:
    """The snapshot of a job, all of whose rows come from telemetry, or from thumbs on it."""
    manifest = decode(objects.get(job["snapshot"]["uri"], job["snapshot"]["digest"]), SnapshotManifest)
    assert manifest.sources == {"telemetry" if job["algorithm"] == "sft" else "thumbs": manifest.rows}
    return manifest


def check_policy(objects: Objects, job: dict[str, Any], folder: Path) -> None:
    """It learned from all rows, and the engine loads it with the trainer's log-probabilities."""
    policy = read_policy(objects, job["artifacts"]["final_checkpoint"])
    assert (policy.manifest.kind, policy.manifest.algorithm, policy.manifest.role) == (ADAPTER, job["algorithm"], ROLE)
    assert policy.manifest.training_samples == learned_from(objects, job).rows
    assert PolicyLoader(objects, folder).load(policy.uri).context
