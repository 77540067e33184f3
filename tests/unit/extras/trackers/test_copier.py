"""What is copied to a tracker, and that a second look, or a second start, copies nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx
import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.state import JOBS, POLICIES, CanaryRoute, Job, PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.training import Artifacts, CurrentMetrics, Hyperparameters, Lora, Progress, TrainingError
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.extras.trackers.app import Copier
from ratchet.extras.trackers.domain import POLICY, Metric, Run, aliases, curve, name_of, run_of, version_tags
from ratchet.extras.trackers.mlflow_rest import Mlflow, Pair, RunData, RunInfo, StoredRun, StoredVersion
from ratchet.extras.trackers.trackers.mlflow import MlflowTracker
from tests.support.blobs import MemoryBlobs
from tests.support.fake_bus import fake_bus
from tests.support.training import NOON, after, config, job, promote, registered, request


class FakeMlflow:
    """Keeps what it is given; refuses runs of the experiment `refused`, and everything while it is `away`."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.points: list[Metric] = []
        self.versions_of: dict[str, dict[str, StoredVersion]] = {}
        self.aliases_of: dict[str, dict[str, str]] = {}
        self.calls = 0
        self.away = False
        self.refused = ""

    async def experiment(self, name: str) -> str:
        self.calls += 1
        if self.away:
            raise Unavailable("away")
        if name == self.refused:
            raise Rejected("no such place")
        return name

    async def find_run(self, experiment: str, job: str) -> StoredRun | None:
        return self.runs.get(job)

    async def create_run(self, experiment: str, run: Run) -> StoredRun:
        stored = StoredRun(RunInfo(f"run-{len(self.runs)}"), RunData([Pair(*pair) for pair in run.tags.items()]))
        self.runs[run.tags["ratchet.training_job_id"]] = stored
        return stored

    async def update_run(self, run_id: str, run: Run) -> None:
        """Nothing to keep."""

    async def log(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        (run,) = (run for run in self.runs.values() if run.info.run_id == run_id)
        self.points += metrics
        for name, value in (params or {}).items():
            assert name not in {param.key for param in run.data.params}, "parameters cannot change"
            run.data.params.append(Pair(name, value))
        run.data.tags = [tag for tag in run.data.tags if tag.key not in (tags or {})]
        run.data.tags += [Pair(*pair) for pair in (tags or {}).items()]

    async def upload(self, info: RunInfo, name: str, content: bytes) -> bool:
        return True

    async def versions(self, model: str) -> dict[str, StoredVersion]:
        self.calls += 1
        return self.versions_of.setdefault(model, {})

    async def create_version(
        self, model: str, source: str, run_id: str | None, tags: Mapping[str, str]
    ) -> StoredVersion:
        known = self.versions_of[model]
        known[tags[POLICY]] = StoredVersion(str(len(known) + 1), [Pair(*pair) for pair in tags.items()])
        return known[tags[POLICY]]

    async def tag_version(self, model: str, version: str, tags: Mapping[str, str]) -> None:
        """Nothing to keep."""

    async def aliases(self, model: str) -> dict[str, str]:
        return self.aliases_of.get(model, {})

    async def set_alias(self, model: str, alias: str, version: str | None) -> None:
        known = self.aliases_of.setdefault(model, {})
        known.pop(alias, None)
        if version is not None:
            known[alias] = version


def copier(bus: FakeBus, blobs: MemoryBlobs, fake: FakeMlflow) -> Copier:
    jobs, policies = Bucket(bus, JOBS, Job), Bucket(bus, POLICIES, PolicyVersion)
    tracker = MlflowTracker(cast("Mlflow", fake), blobs, "ratchet")
    return Copier(cast("Any", jobs), cast("Any", policies), cast("Any", Bucket(bus, POLICIES, Route)), tracker)


async def test_a_second_look_and_a_second_start_copy_nothing_twice() -> None:
    bus, blobs, fake = fake_bus(), MemoryBlobs(), FakeMlflow()
    curves = blobs.put(b'{"step": 1, "seconds": 1.0, "loss": 0.5}\n', "metrics", ".jsonl")
    artifacts = Artifacts(training_curves=curves.uri)
    done = job(state="failed", started_at=after(1), finished_at=after(9), artifacts=artifacts)
    await Bucket(bus, JOBS, Job).put(done.training_job_id, done)
    one = copier(bus, blobs, fake)
    await one.copy()
    calls = fake.calls
    await one.copy()
    assert fake.calls == calls
    await copier(bus, blobs, fake).copy()
    assert len(fake.runs) == 1
    assert [(point.key, point.value, point.step) for point in fake.points if point.key == "train_loss"] == [
        ("train_loss", 0.5, 1)
    ]


async def test_what_a_retry_eased_does_not_change_a_runs_parameters() -> None:
    bus, fake = fake_bus(), FakeMlflow()
    jobs = Bucket(bus, JOBS, Job)
    one = copier(bus, MemoryBlobs(), fake)
    first = job(state="running")
    await jobs.put(first.training_job_id, first)
    await one.copy()
    config = first.request.training_config
    halved = msgspec.structs.replace(
        config, hyperparameters=msgspec.structs.replace(config.hyperparameters, batch_size=4)
    )
    request = msgspec.structs.replace(first.request, training_config=halved)
    await jobs.put(first.training_job_id, job(state="running", attempt=2, request=request))
    await one.copy()
    (run,) = fake.runs.values()
    assert [param.value for param in run.data.params if param.key == "batch_size"] == ["8"]


async def test_refused_job_keeps_no_other_from_being_copied() -> None:
    bus, fake = fake_bus(), FakeMlflow()
    jobs, one = Bucket(bus, JOBS, Job), copier(bus, MemoryBlobs(), fake)
    fake.refused = "ratchet_sales"
    for name, role in (("a", "sales"), ("b", "support")):
        each = msgspec.structs.replace(job(name, state="running"), role=role)
        await jobs.put(each.training_job_id, each)
    fake.away = True
    with pytest.raises(Unavailable):
        await one.copy()
    fake.away = False
    await one.copy()
    assert list(fake.runs) == [job("b").training_job_id]


async def test_a_renewed_lease_asks_the_registry_for_nothing() -> None:
    bus, fake = fake_bus(), FakeMlflow()
    one = copier(bus, MemoryBlobs(), fake)
    await promote(cast("Any", bus), registered(1, stage="stable"))
    await one.copy()
    assert fake.aliases_of == {"ratchet_support": {"production": "1"}}
    calls = fake.calls

    def renewed(route: Route | None) -> Route:
        assert route is not None
        return msgspec.structs.replace(route, next_version=9)

    await Bucket(bus, POLICIES, Route).change("support", renewed)
    await one.copy()
    assert fake.calls == calls


NOON_MS = round(NOON.timestamp() * 1000)


def served(version: int) -> ServedPolicy:
    return ServedPolicy(version=version, name=f"support@{version}-dddddddd", digest="d" * 64)


def test_a_job_is_a_run_of_its_roles_experiment_once_a_worker_had_it() -> None:
    assert run_of(job(state="queued"), "ratchet") is None
    hyper = Hyperparameters(learning_rate=1e-4, lora=Lora(r=4, alpha=8))
    asked = request(training_config=config("dpo", hyperparameters=hyper))
    running = job(
        state="running",
        request=asked,
        started_at=after(5),
        heartbeat_at=after(9),
        progress=Progress(current_step=3),
        metrics=CurrentMetrics(loss=0.5, accuracy=0.75, grad_norm=1.5),
    )
    run = run_of(running, "ratchet")
    assert run is not None
    assert (run.experiment, run.status, run.started_ms, run.ended_ms) == (
        name_of("ratchet", "support"),
        "RUNNING",
        NOON_MS + 5000,
        None,
    )
    assert (run.tags["agent_role"], run.tags["training_type"]) == ("support", "dpo")
    assert (run.params["learning_rate"], run.params["lora.r"], run.params["algorithm"]) == ("0.0001", "4", "dpo")
    assert Metric("live/train_loss", 0.5, NOON_MS + 9000, 3) in run.live


@pytest.mark.parametrize(
    ("state", "status"),
    [("completed", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED"), ("queued", "SCHEDULED")],
)
def test_how_a_run_stands(state: str, status: str) -> None:
    error = TrainingError(code="OOM", message="x" * 9000)
    run = run_of(job(state=state, attempt=2, finished_at=after(60), error=error), "ratchet")
    assert run is not None
    assert run.status == status
    assert run.ended_ms == (None if state == "queued" else NOON_MS + 60_000)
    assert len(run.tags["ratchet.error"]) == 5000
    assert run.live == []


def test_curve_has_the_names_and_times_of_its_steps_and_is_same_each_time() -> None:
    lines = (
        b'{"step": 1, "epoch": 1, "seconds": 2.0, "loss": 0.5, "rewards_chosen": 0.1, "grad_norm": 1}\n'
        b'{"step": 2, "epoch": 1, "seconds": 1.5, "loss": 0.25}\n'
    )
    points = list(curve(lines, 1000))
    assert Metric("train_loss", 0.5, 3000, 1) in points
    assert Metric("implicit_reward", 0.1, 3000, 1) in points
    assert Metric("grad_norm", 1.0, 3000, 1) in points
    assert Metric("train_loss", 0.25, 4500, 2) in points
    assert list(curve(lines, 1000)) == points


def test_aliases_follow_the_rollout() -> None:
    first, second = registered(1, stage="stable"), registered(2)
    assert aliases([first, second], Route(role="support", stable=served(1))) == {"production": 1, "staging": 2}
    canary = CanaryRoute(rollout_id="r", policy=served(2), salt="s", schedule=[], lease=1)
    third = registered(3)
    route = Route(role="support", stable=served(1), canary=canary)
    assert aliases([first, registered(2, stage="canary"), third], route) == {"production": 1, "staging": 2}
    promoted = Route(role="support", stable=served(2))
    assert aliases([registered(2, stage="stable")], promoted) == {"production": 2, "staging": None}
    assert aliases([registered(1, stage="refused")], None) == {"production": None, "staging": None}


def test_a_version_names_its_policy() -> None:
    tags = version_tags(registered(7, algorithm="rloo", parent=6, stage="rolled_back", reason="worse"))
    assert tags["ratchet.policy"] == "support@7-dddddddd"
    assert (tags["training_type"], tags["ratchet.parent"], tags["ratchet.stage"]) == ("rloo", "6", "rolled_back")


async def test_an_answer_without_what_was_asked_for_counts_as_unavailable() -> None:
    empty = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    async with AsyncApiClient(Peer("the MLflow server", "http://mlflow"), empty) as client:
        with pytest.raises(Unavailable, match="`experiment`"):
            await Mlflow(client).experiment("ratchet")
