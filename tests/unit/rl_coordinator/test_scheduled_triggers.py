"""A schedule fires each of its times once, and what fires at the same time is one job."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.state import JOBS, Job
from ratchet.rl_coordinator.jobs.domain.jobs import Counted
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.jobs.domain.schedule import Schedule
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.planner import Planner
from ratchet.rl_coordinator.triggers.domain import Firing, corrected, is_due, newest_time, next_time
from ratchet.rl_coordinator.triggers.firing import Claim, Firer
from ratchet.rl_coordinator.triggers.recipes import Recipe
from ratchet.rl_coordinator.triggers.schedule_trigger import ScheduleTrigger
from tests.support.fake_bus import fake_broker
from tests.support.training import AMOUNTS, changed, config, request

NIGHTLY = "0 3 * * *"
UNASKED: Any = None
"""A trigger's request is not checked against the data, and names its algorithm: nothing is asked."""


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


class Coordinator:
    """The schedule of one of several coordinators on one broker, with a clock of its own."""

    def __init__(self, broker: FakeBroker, recipe: Recipe | None = None) -> None:
        self.now = at(20, 12)
        self.bus = FakeBus(broker, now=lambda: self.now)
        self.store = KvJobs(Bucket(self.bus, JOBS, Job), Bucket(self.bus, "coordinator", str))
        able = Abilities(True, frozenset({"rloo"}), AMOUNTS)
        intake = Intake(
            bus=self.bus,
            store=self.store,
            feasibility=UNASKED,
            abilities=able,
            schedule=Schedule({"default": 1}, 60.0),
            counted=lambda _: Counted(),
        )
        planner = Planner(store=self.store, policies=UNASKED, data=UNASKED, abilities=able, exporter=UNASKED)
        jobs: Any = SimpleNamespace(store=self.store, intake=intake, planner=planner)
        self.claims = Bucket(self.bus, "coordinator", Claim)
        self.firer = Firer(jobs, self.claims, lambda: self.now)
        self.recipe = recipe or Recipe(config=config(), threshold=10, cron=NIGHTLY)
        self.trigger = ScheduleTrigger(
            recipes={"*": self.recipe},
            roles=lambda: ["support"],
            seen=Bucket(self.bus, "coordinator", datetime),
            firer=self.firer,
            now=lambda: self.now,
        )

    async def tick(self, now: datetime) -> None:
        self.now = now
        await self.store.load()
        await self.trigger.tick()

    async def fire(self, kind: str) -> None:
        """As a trigger of this kind does, with what this coordinator knew before."""
        await self.firer.fire("support", Firing(kind, "threshold_reached", f"{kind} fires"), self.recipe)

    async def kinds(self) -> list[list[str]]:
        """By job, oldest first, what asked for it."""
        await self.store.load()
        return [[note.kind for note in job.triggers or []] for job in self.store.all_jobs()]

    async def finish(self) -> None:
        for job in self.store.all_jobs():
            await self.store.change_job(job.training_job_id, lambda one: changed(one, state="completed"))

    @property
    def asked(self) -> int:
        return len(self.bus.published(TrainingRequest))


@pytest.fixture
def one() -> Coordinator:
    return Coordinator(fake_broker())


async def test_a_new_schedule_waits_for_its_next_time(one: Coordinator) -> None:
    await one.tick(at(20, 12))
    await one.tick(at(21, 2, 59))
    assert one.asked == 0
    await one.tick(at(21, 3))
    assert one.asked == 1
    (job,) = one.store.all_jobs()
    assert (job.request.trigger_reason, job.role) == ("scheduled", "support")
    assert [note.why for note in job.triggers or []] == ["the schedule '0 3 * * *' came to 2026-11-21T03:00:00+00:00"]


async def test_a_changed_schedule_waits_for_its_next_time_too(one: Coordinator) -> None:
    await one.tick(at(20, 12))
    later = Coordinator(one.bus.broker, Recipe(config=config(), threshold=10, cron="0 10 * * *"))
    await later.tick(at(20, 12, 1))
    assert later.asked == 0
    await later.tick(at(21, 10))
    assert later.asked == 1


async def test_a_restart_fires_no_time_again_and_of_missed_ones_the_newest(one: Coordinator) -> None:
    await one.tick(at(20, 12))
    await one.tick(at(21, 3))
    await one.finish()
    again = Coordinator(one.bus.broker)
    await again.tick(at(21, 3, 1))
    assert again.asked == 1
    await again.tick(at(25, 9))
    await again.finish()
    await again.tick(at(25, 10))
    assert again.asked == 2


async def test_two_coordinators_whose_clocks_differ_fire_a_time_once(one: Coordinator) -> None:
    other = Coordinator(one.bus.broker)
    await one.tick(at(20, 12))
    await asyncio.gather(one.tick(at(21, 3)), other.tick(at(21, 3, 2)))
    await one.finish()
    await asyncio.gather(other.tick(at(21, 3, 4)), one.tick(at(21, 3, 1)))
    assert one.asked == 1
    assert len(one.store.all_jobs()) == 1


async def test_coordinator_that_died_before_it_noted_the_time_asks_for_same_job(one: Coordinator) -> None:
    await one.tick(at(20, 12))
    await one.tick(at(21, 3))
    await one.finish()
    await Bucket(one.bus, "coordinator", datetime).put(f"fired.support.{named_id('schedule', NIGHTLY)}", at(20, 3))
    await Coordinator(one.bus.broker).tick(at(21, 3, 1))
    assert one.asked == 1


async def test_a_clock_that_was_a_year_ahead_silences_the_schedule_for_no_year(one: Coordinator) -> None:
    await one.tick(at(20, 12))
    await one.tick(at(20, 12) + timedelta(days=365))
    await one.finish()
    await one.tick(at(20, 12, 5))
    await one.tick(at(21, 3))
    assert one.asked == 2


async def test_what_fires_while_a_triggers_job_is_under_way_is_noted_there_once(one: Coordinator) -> None:
    await one.firer.fire("support", Firing("rewarded", "threshold_reached", "12 new", named_id("r")), one.recipe)
    await one.tick(at(20, 12))
    for minute in (0, 1):
        await one.tick(at(21, 3, minute))
    await one.firer.fire(
        "support", Firing("degradation", "performance_degradation", "worse", named_id("d")), one.recipe
    )
    (job,) = one.store.all_jobs()
    assert [note.kind for note in job.triggers or []] == ["rewarded", "schedule", "degradation"]
    await one.finish()
    await one.tick(at(21, 9))
    assert len(one.store.all_jobs()) == 1


async def test_triggers_of_two_unacquainted_coordinators_make_one_job(one: Coordinator) -> None:
    other = Coordinator(one.bus.broker)
    await one.fire("rewarded")
    await other.fire("degradation")
    await other.fire("degradation")
    assert await one.kinds() == [["rewarded", "degradation"]]
    await one.finish()
    await other.fire("degradation")
    await one.fire("rewarded")
    assert await other.kinds() == [["rewarded", "degradation"], ["degradation", "rewarded"]]


async def test_training_of_a_dead_coordinator_is_asked_for_by_the_next(one: Coordinator) -> None:
    claimed = changed(request("claimed", trigger_reason="scheduled"), timestamp=one.now)
    await one.claims.create("claim.support", Claim(request=claimed))
    await one.fire("rewarded")
    assert await one.kinds() == [["rewarded"]]
    assert [job.training_job_id for job in one.store.all_jobs()] == [claimed.training_job_id]


async def test_a_training_whose_job_is_not_kept_any_more_is_not_asked_for_again(one: Coordinator) -> None:
    claimed = changed(request("claimed", trigger_reason="scheduled"), timestamp=one.now - timedelta(days=91))
    await one.claims.create("claim.support", Claim(request=claimed))
    await one.fire("rewarded")
    assert await one.kinds() == [["rewarded"]]
    assert one.store.all_jobs()[0].training_job_id != claimed.training_job_id


async def test_firing_that_can_start_nothing_is_reported_until_one_can(one: Coordinator) -> None:
    one.recipe = changed(one.recipe, config=config("dpo"))
    await one.fire("rewarded")
    refused = one.firer.refused("support", "rewarded")
    assert refused is not None
    assert "algorithm 'dpo' is not offered" in refused.why
    assert await one.kinds() == []
    assert await one.claims.get("claim.support") is None
    one.recipe = changed(one.recipe, config=config())
    await one.fire("rewarded")
    assert (await one.kinds(), one.firer.refused("support", "rewarded")) == ([["rewarded"]], None)


def test_times_are_utc_whatever_the_zone_of_the_clock() -> None:
    east = at(21, 3).astimezone(tz=None).replace(microsecond=5)
    assert newest_time(NIGHTLY, east) == at(21, 3)
    assert next_time(NIGHTLY, east) == at(22, 3)


@pytest.mark.parametrize(
    ("seen", "now", "due", "note"),
    [
        (None, at(21, 4), False, at(21, 3)),
        (at(21, 3), at(21, 4), False, None),
        (at(20, 3), at(21, 4), True, None),
        (at(22, 3), at(21, 4), False, None),
        (at(29, 3), at(21, 4), False, at(21, 3)),
    ],
)
def test_what_is_due_and_what_is_corrected(
    seen: datetime | None, now: datetime, due: bool, note: datetime | None
) -> None:
    assert (is_due(NIGHTLY, seen, now), corrected(NIGHTLY, seen, now)) == (due, note)
