"""The loop's picture: roles from several sources, consumers that fall behind, and parts that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.bus.testing import FakeClock, eventually
from ratchet.console.clickhouse_loop import History
from ratchet.console.domain.attention import Growth
from ratchet.console.domain.loop import COMPARED_S, Lags, loop_roles
from ratchet.console.loop import FRESH_S, KEPT_S, PART_S, Loop, Sources
from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AlertsOut, ConsumerOut, LoopOut, LoopRoleOut, ServiceOut, StreamOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.http.status import JobBrief, RoleOut, StatusOut, TrainingStatusOut
from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy, WeightStep
from ratchet.core.errors import BusUnavailable, WarehouseUnavailable

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
STABLE = ServedPolicy(version=2, name="support@2-aaaaaaaa", digest="a" * 64)
CANARY = ServedPolicy(version=3, name="support@3-bbbbbbbb", digest="b" * 64)
ROUTE = Route(
    role="support",
    stable=STABLE,
    canary=CanaryRoute(
        rollout_id="r",
        policy=CANARY,
        salt="s",
        schedule=[
            WeightStep(at=NOW - timedelta(hours=1), weight=0.1),
            WeightStep(at=NOW + timedelta(seconds=3), weight=0.25),
        ],
        lease=1,
    ),
)
BRIEF = JobBrief(training_job_id="j", role="support", algorithm="rloo", state="running", created_at=NOW)
STATUS = StatusOut(
    training_enabled=True,
    algorithms=["rloo"],
    jobs={"running": 1},
    slots={},
    longest_wait_s=0,
    roles={"support": RoleOut(stable=STABLE.name, rewarded=9, since_last_training=4, threshold=10)},
)
TRAINING = TrainingStatusOut(
    training_enabled=True,
    algorithms=["rloo"],
    slots={},
    jobs={},
    active=[BRIEF],
    waiting=[],
    longest_wait_s=0,
    last={},
)


def streams(lag: int) -> list[StreamOut]:
    consumer = ConsumerOut(name="collector-turns", lag=lag, unacknowledged=0, redelivered=0)
    return [StreamOut(name="RL_TURNS", messages=lag, bytes=1, consumers=[consumer])]


def test_role_has_its_route_from_broker_and_its_training_from_coordinator() -> None:
    roles = loop_roles({"support": ROUTE}, STATUS.roles, TRAINING, [], NOW)
    assert roles == [
        LoopRoleOut(
            role="support",
            stable=STABLE.name,
            canary=CANARY.name,
            weight=0.1,
            rollout=None,
            active_jobs=1,
            since_last_training=4,
            threshold=10,
        )
    ]


def test_a_role_is_shown_as_far_as_a_source_knows_it() -> None:
    of_route, of_status = loop_roles({"sales": Route(role="sales")}, STATUS.roles, None, [], NOW)
    assert (of_route.role, of_route.stable, of_route.since_last_training) == ("sales", None, None)
    assert (of_status.role, of_status.stable, of_status.canary, of_status.active_jobs) == (
        "support",
        STABLE.name,
        None,
        0,
    )


def test_consumer_falls_behind_when_it_is_further_behind_than_a_while_ago() -> None:
    lags = Lags()
    assert lags.growths(streams(10), 0.0) == []
    assert lags.growths(streams(500), COMPARED_S / 2) == []
    growth = Growth("RL_TURNS", "collector-turns", 10, 2000, COMPARED_S)
    assert lags.growths(streams(2000), COMPARED_S) == [growth]
    assert lags.growths(streams(400), 1.5 * COMPARED_S) == []


def test_a_consumer_that_is_new_falls_behind_nothing() -> None:
    lags = Lags()
    lags.growths([], 0.0)
    assert lags.growths(streams(5000), COMPARED_S) == []


class World:
    """Sources that answer, fail or hang as a test says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.reads = 0
        self.fault: Exception | None = None
        self.hangs = False
        self.sources = Sources(
            history=self.history,
            streams=self.streams,
            training=self.training,
            rollouts=self.rollouts,
            services=self.services,
            disk=self.disk,
            alerts=self.alerts,
            notified=self.notified,
            routes=lambda: {"support": ROUTE},
        )

    async def notified(self) -> AlertsOut:
        return AlertsOut(alerts=[], receivers=[])

    def loop(self, **changed: Any) -> Loop:
        return Loop(replace(self.sources, **changed), self.clock, self.clock.monotonic)

    async def history(self) -> History:
        self.reads += 1
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault
        return History(open_trajectories=7)

    async def streams(self) -> Sequence[StreamOut]:
        return streams(1)

    async def training(self) -> tuple[StatusOut, TrainingStatusOut]:
        return STATUS, TRAINING

    async def rollouts(self) -> Sequence[RolloutOut]:
        return []

    async def services(self) -> Sequence[ServiceOut]:
        return [ServiceOut(name="gateway", state="away", reason="refused", notes={})]

    async def disk(self) -> str | None:
        return None

    async def alerts(self) -> Sequence[Alert]:
        return []


async def test_the_picture_has_every_part_and_what_follows_from_them() -> None:
    picture = await World().loop().current()
    assert (picture.open_trajectories, picture.jobs, picture.unread) == (7, {"running": 1}, {})
    assert [role.role for role in picture.roles] == ["support"]
    assert [item.title for item in picture.attention] == ["gateway does not answer"]


async def test_part_that_cannot_be_read_is_named_and_its_value_stays_a_minute() -> None:
    world = World()
    loop = world.loop()
    await loop.current()
    world.fault = WarehouseUnavailable("ClickHouse does not answer")

    async def later(seconds: float) -> LoopOut:
        world.clock.advance(seconds)
        return await loop.current()

    soon, late = await later(KEPT_S - 1), await later(2)
    assert soon.unread == late.unread == {"clickhouse": "ClickHouse does not answer"}
    assert (soon.open_trajectories, late.open_trajectories) == (7, None)
    world.fault = None
    assert (await later(2)).unread == {}


async def test_alerts_that_cannot_be_read_are_named() -> None:
    async def away() -> Sequence[Alert]:
        raise BusUnavailable("RL_ALERTS is not read to its end yet")

    picture = await World().loop(alerts=away).current()
    assert picture.unread == {"alerts": "RL_ALERTS is not read to its end yet"}


async def test_a_part_that_hangs_holds_up_no_other() -> None:
    world = World()
    world.hangs = True
    began = asyncio.get_running_loop().time()
    picture = await world.loop().current()
    assert picture.unread == {"clickhouse": f"no answer within {PART_S:g} s"}
    assert picture.jobs == {"running": 1}
    assert asyncio.get_running_loop().time() - began >= PART_S * 0.9


async def test_the_picture_is_read_once_for_all_who_ask_at_the_same_time() -> None:
    world = World()
    loop = world.loop()
    pictures = await asyncio.gather(*(loop.current() for _ in range(20)))
    assert (world.reads, len({id(one) for one in pictures})) == (1, 1)
    world.clock.advance(FRESH_S + 0.1)
    await loop.current()
    assert world.reads == 2


async def test_an_asker_that_leaves_breaks_nothing_for_the_next() -> None:
    world = World()
    world.hangs = True
    loop = world.loop()
    leaving = asyncio.create_task(loop.current())

    async def reading() -> bool:
        return world.reads == 1

    await eventually(reading)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    world.hangs = False
    assert (await loop.current()).open_trajectories == 7
