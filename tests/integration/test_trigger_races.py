"""Triggers of several coordinators on the real broker: whatever fires at one moment is one job of a role."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.service.settings import SharedSettings
from ratchet.rl_coordinator.jobs.domain.jobs import Counted
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.planner import Planner
from ratchet.rl_coordinator.triggers.domain import Firing
from ratchet.rl_coordinator.triggers.firing import Claim, Firer
from ratchet.rl_coordinator.triggers.recipes import Recipe
from tests.support.consuming import messages_of
from tests.support.running import connected
from tests.support.training import AMOUNTS, changed, config

RECIPE = Recipe(config=config(), threshold=10)
KINDS = ("rewarded", "preferences", "schedule", "degradation")
UNASKED: Any = None
"""A trigger's request names its algorithm, and is not checked against the data: nothing is asked."""
ROUNDS = 8


def firer_on(bus: Bus) -> tuple[KvJobs, Firer]:
    """The triggers of one coordinator, which has read no job yet."""
    store, able = (
        KvJobs(Bucket(bus, JOBS, Job), Bucket(bus, "coordinator", str)),
        Abilities(True, frozenset({"rloo"}), AMOUNTS),
    )
    intake = Intake(
        bus=bus,
        store=store,
        feasibility=UNASKED,
        abilities=able,
        schedule=Schedule({"default": 1}, 60.0),
        counted=lambda _: Counted(),
    )
    planner = Planner(store=store, policies=UNASKED, data=UNASKED, abilities=able, exporter=UNASKED)
    jobs: Any = SimpleNamespace(store=store, intake=intake, planner=planner)
    return store, Firer(jobs, Bucket(bus, "coordinator", Claim), bus.now)


async def test_triggers_of_three_coordinators_at_one_moment_make_one_job(
    shared_settings: SharedSettings,
) -> None:
    async with connected(shared_settings) as first, connected(shared_settings) as second:
        coordinators = [firer_on(bus) for bus in (first, second, second)]
        watching, _ = coordinators[0]
        for number in range(1, ROUNDS + 1):
            await asyncio.gather(
                *(
                    firer.fire("support", Firing(kind, "threshold_reached", f"{kind} {number}"), RECIPE)
                    for _, firer in coordinators
                    for kind in KINDS
                )
            )
            await watching.load()
            jobs = watching.all_jobs()
            assert len(jobs) == number
            (new,) = [job for job in jobs if job.state == "queued"]
            assert {note.kind: note.why for note in new.triggers or []} == {kind: f"{kind} {number}" for kind in KINDS}
            await watching.change_job(new.training_job_id, lambda job: changed(job, state="completed"))
        requests = Counter(one.training_job_id for one in await messages_of(first, TrainingRequest))
        assert len(requests) == ROUNDS
