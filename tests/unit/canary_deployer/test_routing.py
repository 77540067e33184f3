"""Routes that the deployer writes, read by the gateways' own arm function: percentages and stickiness."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ratchet.core.contract.state import Route
from ratchet.core.rules.arms import arm_of
from tests.support.canary_world import CanaryWorld, started_id


async def at_stage(stage: int) -> tuple[CanaryWorld, Route]:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    while (await world.rollout()).stage < stage:
        world.clock.advance(61)
        await world.play(150, 0.8, 0.8)
    return world, await world.route()


def ids(world: CanaryWorld, count: int = 4000) -> list[str]:
    """Trajectories that start now."""
    return [started_id(world.clock(), number) for number in range(count)]


def canaries(world: CanaryWorld, route: Route) -> set[str]:
    arms = {one: arm_of(route, one) for one in ids(world)}
    return {one for one, given in arms.items() if given is not None and given.arm == "canary"}


@pytest.mark.parametrize(("stage", "weight"), [(0, 0.1), (1, 0.25), (2, 0.5)])
async def test_traffic_matches_the_stage_within_two_percentage_points(stage: int, weight: float) -> None:
    world, route = await at_stage(stage)
    assert len(canaries(world, route)) / 4000 == pytest.approx(weight, abs=0.02)


async def test_a_trajectory_keeps_its_arm_when_the_weight_moves() -> None:
    world, first = await at_stage(0)
    before = {one: arm_of(first, one) for one in ids(world, 500)}
    while (await world.rollout()).stage < 2:
        world.clock.advance(61)
        await world.play(150, 0.8, 0.8)
    later = await world.route()
    assert {one: arm_of(later, one) for one in before} == before


async def test_before_the_rollout_and_after_its_end_everything_is_stable() -> None:
    world, route = await at_stage(0)
    early = arm_of(route, started_id(world.clock() - timedelta(days=1), 0))
    assert early is not None
    assert (early.arm, early.weight) == ("stable", 0.0)
    world.clock.advance(61)
    for _ in range(20):
        if (await world.rollout()).active:
            await world.play(100, 0.9, 0.0)
    assert canaries(world, await world.route()) == set()
