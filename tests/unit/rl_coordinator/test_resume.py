"""A job is resumed only where it could run: what is certain to fail is refused in words, and the job stays ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.contract.training import Artifacts, Dataset, SnapshotRef
from ratchet.core.errors import ObjectsUnavailable, WrongState
from ratchet.rl_coordinator.jobs.domain.jobs import Counted
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.feasibility import Feasibility
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from tests.support.fake_bus import fake_broker
from tests.support.training import AMOUNTS, NOON, after, config, job, request

CHECKPOINT = "s3://b/checkpoints/1.json"
UNASKED: Any = None
"""Nothing is asked of the other stores."""


def kept(uri: str) -> bool:
    return uri == CHECKPOINT


def away(uri: str) -> bool:
    raise ObjectsUnavailable(f"no answer about {uri}")


async def intake_with(ended: Job, exists: Any = kept, algorithms: frozenset[str] = frozenset({"rloo"})) -> Intake:
    bus = FakeBus(fake_broker(), now=lambda: after(60))
    store = KvJobs(Bucket(bus, JOBS, Job), Bucket(bus, "coordinator", str))
    await store.create_job(ended)
    objects: Any = SimpleNamespace(exists=exists)
    feasibility = Feasibility(
        policies=UNASKED, exporter=UNASKED, objects=objects, snapshots=UNASKED, amounts=AMOUNTS, store=store
    )
    return Intake(
        bus=bus,
        store=store,
        feasibility=feasibility,
        abilities=Abilities(True, algorithms, AMOUNTS),
        schedule=Schedule({"default": 1, "closed": 0}, 60.0),
        counted=lambda _: Counted(),
    )


def stopped(**changes: Any) -> Job:
    return job(state="cancelled", artifacts=Artifacts(checkpoint=changes.pop("checkpoint", CHECKPOINT)), **changes)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (stopped(request=request("late", deadline=after(30))), "deadline .* has passed"),
        (stopped(pool="gpu"), "pool gpu has no slot"),
        (stopped(pool="closed"), "pool closed has no slot"),
        (stopped(checkpoint="s3://b/checkpoints/swept.json"), "swept.json is gone"),
    ],
)
async def test_what_is_certain_to_fail_is_not_resumed(ended: Job, why: str) -> None:
    intake = await intake_with(ended)
    with pytest.raises(WrongState, match=why):
        await intake.resume(ended.training_job_id, "ada")
    assert await intake.cancel(ended.training_job_id, "ops") == ended


async def test_an_algorithm_that_the_workers_lost_is_not_resumed() -> None:
    ended = stopped()
    intake = await intake_with(ended, algorithms=frozenset({"sft"}))
    with pytest.raises(WrongState, match="rloo"):
        await intake.resume(ended.training_job_id, "ada")


@pytest.mark.parametrize("exists", [kept, away])
async def test_what_may_work_is_resumed(exists: Any) -> None:
    """Also while the object store is away: the job waits for it."""
    data = Dataset(source="clickhouse", sample_size=100, snapshot=SnapshotRef(uri="s3://b/s.json", digest="e" * 64))
    ended = stopped(request=request("in time", deadline=after(90), training_config=config(dataset=data)))
    resumed = await (await intake_with(ended, exists)).resume(ended.training_job_id, "ada")
    assert (resumed.state, resumed.attempt, resumed.created_at) == ("queued", 2, NOON)
