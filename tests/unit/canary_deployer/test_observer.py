"""A canary with traffic: its lease, its evidence, and the time that it has lasted."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from ratchet.bus.kv import Bucket, Entry
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.nats_events import Behind, Places
from ratchet.core.contract import named_id
from ratchet.core.contract.state import POLICIES, ROLLOUTS, Route
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.arms import weight_at
from tests.support.canary_world import (
    ROLE,
    CanaryWorld,
    FakeEvents,
    FakeSource,
    quick_rules,
    reward_of,
    served,
    start_of,
    started_id,
    turn_of,
)


@pytest.mark.parametrize("state", ["running", "paused", "held"])
async def test_the_lease_grows_in_every_state_with_traffic(state: str) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    if state == "paused":
        await world.operators.act(Act.PAUSE, Order("ann", "wait"))
    if state == "held":
        world.clock.advance(3601)
        await world.controller.step()
    assert (await world.rollout()).state == state
    leases = []
    for _ in range(3):
        world.clock.advance(5)
        await world.controller.step()
        canary = (await world.route()).canary
        assert canary is not None
        leases.append(canary.lease)
    assert leases == sorted(set(leases))


async def test_route_deleted_or_set_back_under_a_rollout_is_made_true_again() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    before, routes = await world.route(), Bucket(world.bus, POLICIES, Route)
    for damage in (None, Route(role=ROLE), Route(role=ROLE, stable=served(2))):
        await routes.delete(ROLE)
        if damage is not None:
            await routes.put(ROLE, damage)
        world.clock.advance(10)
        await world.controller.step()
        route = await world.route()
        assert (route.stable, route.canary and route.canary.policy) == (served(1), served(2))
        assert before.canary is not None
        assert route.canary is not None
        assert (route.canary.salt, route.canary.schedule) == (before.canary.salt, before.canary.schedule)


async def test_rollout_whose_streams_were_made_anew_is_rolled_back_with_reason() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.bus.arrive([start_of(named_id("before"), "stable", 1, 0.0, await world.route())])
    await world.until("running")
    world.bus.broker.streams["RL_STARTS"].make_anew()
    world.restart()
    rollout = await world.until("rolled_back")
    assert "made anew" in rollout.reason


class BrokenSource(FakeSource):
    """The streams exist and cannot be read."""

    async def open(self, role: str, places: Places) -> FakeEvents:
        raise BusUnavailable("cannot read RL_REWARDS")


async def test_a_canary_whose_evidence_cannot_be_read_is_not_kept_alive() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.controller = world.new_controller(source=BrokenSource(world.bus, world.traffic))
    leases: list[int] = []
    for _ in range(10):
        with pytest.raises(BusUnavailable):
            await world.controller.step()
        canary = (await world.route()).canary
        assert canary is not None
        leases.append(canary.lease)
        world.clock.advance(5)
    assert (leases[:3], leases[3:]) == ([2, 3, 4], [4] * 7)
    world.restart()
    world.clock.advance(5)
    await world.play(1, 0.5, 0.5)
    renewed = (await world.route()).canary
    assert renewed is not None
    assert renewed.lease == 5


async def lease_after(world: CanaryWorld, seconds: float) -> int:
    """Of the canary, after a step so much later."""
    world.clock.advance(seconds)
    await world.controller.step()
    canary = (await world.route()).canary
    assert canary is not None
    return canary.lease


async def test_canary_whose_outcomes_come_too_late_gets_no_traffic_until_then() -> None:
    """Else a collector that cannot keep up would leave a bad canary in traffic for as long as it stays behind."""
    world = await CanaryWorld(quick_rules(horizon_s=300.0)).with_policies(1, 2)
    source = FakeSource(world.bus, world.traffic)
    world.controller = world.new_controller(source=source)
    await world.until("running")
    grown: list[tuple[float, bool]] = []
    for late_s in (0.0, 590.0, 610.0, 310.0, 290.0, 590.0):
        source.behind = Behind("trajectory_collector", late_s)
        before = await lease_after(world, 5)
        grown.append((late_s, await lease_after(world, 5) > before))
    assert grown == [(0.0, True), (590.0, True), (610.0, False), (310.0, False), (290.0, True), (590.0, True)]
    assert world.controller.observer.late == "outcomes are 590 s late: trajectory_collector is behind"


async def test_operators_see_which_service_makes_outcomes_late() -> None:
    world = await CanaryWorld(quick_rules(horizon_s=300.0)).with_policies(1, 2)
    source = FakeSource(world.bus, world.traffic, Behind("reward_computer", 2.0))
    world.controller = world.new_controller(source=source)
    await world.until("running")
    await lease_after(world, 5)
    assert world.controller.observer.late is None, "less than anybody has to know of"
    source.behind = Behind("reward_computer", 700.0)
    await lease_after(world, 5)
    assert world.controller.observer.late == (
        "outcomes are 700 s late: reward_computer is behind;"
        " the canary gets no traffic until they come within the horizon"
    )
    assert REGISTRY.get_sample_value("ratchet_rollout_outcomes_behind_seconds", {"role": ROLE}) == 700
    await world.operators.act(Act.ROLLBACK, Order("ann", "nothing can be judged"))
    world.controller.wake()
    await world.controller.step()
    assert world.controller.observer.late is None
    assert REGISTRY.get_sample_value("ratchet_rollout_outcomes_behind_seconds", {"role": ROLE}) == 0


class UnwritableRecords:
    """The records of rollouts can be read and not changed, as on a full stream."""

    def __init__(self, records: Bucket[Rollout]) -> None:
        self._records = records

    async def get(self, key: str) -> Entry[Rollout] | None:
        return await self._records.get(key)

    async def update(self, key: str, value: Rollout, revision: int) -> int:
        raise BusUnavailable("cannot write rollouts")


async def test_a_canary_whose_evidence_cannot_be_saved_is_not_kept_alive() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    records: Any = UnwritableRecords(Bucket(world.bus, ROLLOUTS, Rollout))
    world.controller = world.new_controller(rollouts=records)
    leases: list[int] = []
    for _ in range(10):
        world.clock.advance(5)
        with pytest.raises(BusUnavailable):
            await world.controller.step()
        canary = (await world.route()).canary
        assert canary is not None
        leases.append(canary.lease)
    assert (leases[:3], leases[3:]) == ([2, 3, 4], [4] * 7)


async def test_impossible_latencies_leave_a_record_that_can_be_read() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    route, trajectory_id = await world.route(), started_id(world.clock(), 1)
    claim = (trajectory_id, "stable", 1, 0.1)
    turns = [turn_of(*claim, index=index, latency_ms=1.7e308) for index in range(2)]
    world.bus.arrive([start_of(*claim, route), *turns, reward_of(trajectory_id, success=True)])
    world.clock.advance(61)
    await world.controller.step()
    assert (await world.rollout()).statistics.stable.timed == 1


@pytest.mark.parametrize("jump_s", [-7 * 86400, -600, 600, 30 * 86400])
async def test_clock_that_is_set_changes_no_stage_lease_deadline_or_soak(jump_s: float) -> None:
    worlds = [await CanaryWorld().with_policies(1, 2) for _ in range(2)]
    for number, world in enumerate(worlds):
        await world.until("running")
        await world.play(100, 0.5, 0.5)
        for _ in range(3):
            world.clock.set_by(jump_s * number)
            world.clock.advance(15)
            await world.controller.step()
    plain, jumped = [await world.rollout() for world in worlds]
    assert (jumped.stage, jumped.stage_age_s, jumped.age_s) == (plain.stage, 45, 45)
    for world in worlds:
        world.clock.advance(15)
        await world.controller.step()
        assert (await world.rollout()).stage == 1
    leases = [(await world.route()).canary for world in worlds]
    assert leases[0] is not None
    assert leases[1] is not None
    assert leases[0].lease == leases[1].lease > 3


async def test_a_new_weight_replaces_the_old_one_although_the_clock_was_set_back() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(100, 0.8, 0.8)
    world.clock.advance(61)
    world.clock.set_by(-3600)
    await world.controller.step()
    canary = (await world.route()).canary
    assert (await world.rollout()).stage == 1
    assert canary is not None
    assert weight_at(canary.schedule, max(step.at for step in canary.schedule)) == 0.25
    assert [step.weight for step in sorted(canary.schedule, key=lambda step: step.at)] == [0.1, 0.25]


async def test_time_without_a_running_deployer_does_not_age_a_stage() -> None:
    world = CanaryWorld()
    world.longest_tick_s = 15.0
    world.restart()
    await world.with_policies(1, 2)
    await world.until("running")
    await world.play(100, 0.8, 0.8)
    world.clock.advance(3600)
    await world.controller.step()
    rollout = await world.rollout()
    assert (rollout.stage, rollout.stage_age_s) == (0, 15)


async def test_the_age_of_a_stage_survives_a_kill_up_to_the_last_lease() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    for _ in range(5):
        world.clock.advance(6)
        await world.controller.step()
    world.restart()
    world.clock.advance(600)
    for _ in range(2):
        await world.controller.step()
        world.clock.advance(6)
    await world.controller.step()
    assert (await world.rollout()).stage_age_s == 30 + 12
