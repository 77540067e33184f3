"""Reports on real servers: what ClickHouse holds of a time, and that the notifier sends each report once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import named_id
from ratchet.core.contract.deployment import ModelDeployed, ModelRollout
from ratchet.core.contract.notifications import NOTIFICATIONS, Receiver as State, SentReport
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.contract.training import TrainingError, TrainingRequest, TrainingStatus
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.report_facts import facts_between
from ratchet.core.stores.warehouse import Warehouse
from ratchet.notifier.app import Timing, build
from ratchet.notifier.domain.schedule import SETTLED
from ratchet.notifier.settings import Settings
from tests.integration.test_statistics import ended, rewarded, store
from tests.support.contract_files import example
from tests.support.receivers import Receiver, receiving
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.training import job, request

AT = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
MORNING = datetime(2026, 11, 21, 8, tzinfo=UTC)
FAST = Timing(look_s=0.2, spacing=timedelta(), first_pause=timedelta(milliseconds=10))


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def decision(number: int, verdict: str, **changes: Any) -> ModelRollout:
    made = msgspec.convert(example("model.rollout.v1"), ModelRollout)
    evidence = {"differences": {"reward": {"difference": -0.05, "low": -0.09, "high": -0.01}}}
    members = {"role": "support", "sequence": number, "timestamp": AT + timedelta(minutes=number), "evidence": evidence}
    return changed(made, verdict=verdict, **{**members, **changes})


def status(name: str, state: str, minutes: int, **changes: Any) -> TrainingStatus:
    made = msgspec.convert(example("training.status.v1", "minimal"), TrainingStatus)
    at = AT + timedelta(minutes=minutes)
    return changed(made, training_job_id=named_id("test", name), role="support", status=state, timestamp=at, **changes)


async def day_of_support(warehouse: Warehouse) -> None:
    """A day with two trajectories, two trainings, a new policy, a promotion and a rollback."""
    await store(warehouse, ended("a"), ended("b", status="failure"), rewarded("a", 1.0), rewarded("b", 0.5))
    failure = TrainingError(code="DATA", message="too few rows")
    await store(warehouse, request("j1"), request("j2"), first=10)
    await store(warehouse, status("j1", "running", 0), status("j1", "completed", 5), first=20)
    await store(warehouse, status("j2", "running", 1), status("j2", "failed", 6, error=failure), first=30)
    registered = msgspec.convert(example("model.deployed.v1"), ModelDeployed)
    registered = changed(
        registered, role="support", state="registered", policy_version=7, timestamp=AT - timedelta(minutes=9)
    )
    await store(warehouse, registered, first=40)
    decisions = (decision(0, "start"), decision(1, "advance"), decision(2, "promote"), decision(3, "revert"))
    await store(warehouse, *decisions, first=50)


async def test_facts_of_a_day_are_those_that_clickhouse_holds(warehouse: Warehouse) -> None:
    await day_of_support(warehouse)
    facts = await facts_between(warehouse, MORNING - timedelta(days=1), MORNING, ["support"])
    assert facts.roles is not None
    (group,) = facts.roles
    assert (group.names, group.trajectories, group.mean_reward) == (["support"], 2, 0.75)
    jobs = [(made.algorithm, made.state, made.error) for made in facts.jobs]
    assert jobs == [("rloo", "completed", ""), ("rloo", "failed", "too few rows")]
    assert [made.verdict for made in facts.changes] == ["registered", "start", "promote", "revert"]
    assert facts.changes[2].earned == (0.05, 0.01, 0.09)


async def test_facts_leave_out_other_roles_and_other_days(warehouse: Warehouse) -> None:
    await day_of_support(warehouse)
    others = await facts_between(warehouse, MORNING - timedelta(days=1), MORNING, ["sup"])
    later = await facts_between(warehouse, MORNING, MORNING + timedelta(days=1))
    assert (others.roles, others.jobs, others.changes) == ([], [], [])
    assert (later.roles, later.jobs, later.changes) == ([], [], [])


@asynccontextmanager
async def notifier(
    shared: SharedSettings, receiver: Receiver, now: Callable[[], datetime], *kinds: str
) -> AsyncIterator[App]:
    receivers = json.loads(json.dumps([receiver.settings(reports=kinds)]))
    made = Settings.model_validate({"shared": shared, "receivers": receivers})
    async with running_app(build(made, replace(FAST, now=now))) as app:
        yield app


def reports_of(receiver: Receiver) -> list[SentReport]:
    return [sent.report for sent in receiver.notifications if sent.report is not None]


async def has(receiver: Receiver, number: int) -> bool:
    return len(reports_of(receiver)) >= number


async def is_noted(bus: Bus, kind: str) -> bool:
    entry = await Bucket(bus, NOTIFICATIONS, State).get("team")
    return entry is not None and kind in entry.value.reported


async def test_daily_report_comes_once_from_two_notifiers_and_after_a_restart(
    shared_settings: SharedSettings, warehouse: Warehouse, tmp_path: Path
) -> None:
    await day_of_support(warehouse)
    second = shared_settings.model_copy(update={"data_dir": tmp_path / "second"})
    clock = [MORNING - timedelta(minutes=1)]
    async with connected(shared_settings) as bus, receiving() as receiver:
        async with notifier(shared_settings, receiver, lambda: clock[0], "daily"):
            await eventually(lambda: is_noted(bus, "daily"))
            async with notifier(second, receiver, lambda: clock[0], "daily"):
                clock[0] = MORNING + SETTLED
                await eventually(lambda: has(receiver, 1))
                clock[0] += timedelta(minutes=5)
        async with notifier(shared_settings, receiver, lambda: clock[0], "daily"):
            clock[0] = MORNING + timedelta(days=3, hours=2)
            await eventually(lambda: has(receiver, 2))
    first, late = reports_of(receiver)
    assert (first.until, late.until) == (MORNING, MORNING + timedelta(days=3))
    assert "support: 2 trajectories; mean reward 0.750" in first.markdown
    assert "rloo" in first.html
    assert len(receiver.ids) == len({*receiver.ids}) == 2


async def test_report_of_a_training_comes_once_it_has_ended(shared_settings: SharedSettings) -> None:
    clock = [MORNING]
    asked: TrainingRequest = request("j1")
    async with connected(shared_settings) as bus, receiving() as receiver:
        jobs = Bucket(bus, JOBS, Job)
        async with notifier(shared_settings, receiver, lambda: clock[0], "job"):
            await eventually(lambda: is_noted(bus, "job"))
            running = job("j1", state="running", request=asked)
            await jobs.put(running.training_job_id, running)
            clock[0] += timedelta(minutes=10)
            ended_job = changed(running, state="completed", finished_at=MORNING + timedelta(minutes=9))
            await jobs.put(running.training_job_id, ended_job)
            await eventually(lambda: has(receiver, 1))
    (report,) = reports_of(receiver)
    assert (report.kind, report.job_id) == ("job", running.training_job_id)
    assert "completed: rloo" in report.title
