"""What is copied to a tracker, and that a second look, or a second start, copies nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.contract.training import Artifacts
from ratchet.core.errors import Rejected, Unavailable
from ratchet.extras.trackers.copier import Copier
from ratchet.extras.trackers.domain import POLICY, Metric, Run
from ratchet.extras.trackers.mlflow_rest import Mlflow, Pair, RunData, RunInfo, StoredRun, StoredVersion
from ratchet.extras.trackers.trackers.mlflow import MlflowTracker
from tests.support.blobs import MemoryBlobs
from tests.support.fake_bus import fake_bus
from tests.support.training import after, job, promote, registered


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


async def test_a_job_that_is_refused_keeps_no_other_from_being_copied_and_one_that_failed_for_a_while_comes_later() -> (
    None
):
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
