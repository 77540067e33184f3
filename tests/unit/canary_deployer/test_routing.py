"""Routes that the deployer writes, read by the gateways' own arm function: percentages and stickiness."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ratchet.messages import named_id
from ratchet.messages.routing import arm_of
from ratchet.messages.state import Route
from tests.support.canary_world import CanaryWorld

IDS = [named_id("trajectory", number) for number in range(4000)]


async def at_stage(stage: int) -> tuple[CanaryWorld, Route]:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    while (await world.rollout()).stage < stage:
        world.clock.advance(61)
        await world.play(150, 0.8, 0.8)
    return world, await world.route()


def canaries(world: CanaryWorld, route: Route) -> set[str]:
    arms = {one: arm_of(route, one, world.clock()) for one in IDS}
    return {one for one, given in arms.items() if given is not None and given.arm == "canary"}


@pytest.mark.parametrize(("stage", "weight"), [(0, 0.1), (1, 0.25), (2, 0.5)])
async def test_traffic_matches_the_stage_within_two_percentage_points(stage: int, weight: float):
    world, route = await at_stage(stage)
    assert len(canaries(world, route)) / len(IDS) == pytest.approx(weight, abs=0.02)


async def test_whoever_meets_the_canary_meets_it_at_every_later_stage():
    world, first = await at_stage(0)
    early = canaries(world, first)
    while (await world.rollout()).stage < 2:
        world.clock.advance(61)
        await world.play(150, 0.8, 0.8)
    assert early < canaries(world, await world.route())


async def test_a_trajectory_keeps_its_arm_when_the_weight_moves():
    world, first = await at_stage(0)
    began = world.clock()
    before = {one: arm_of(first, one, began) for one in IDS[:500]}
    while (await world.rollout()).stage < 2:
        world.clock.advance(61)
        await world.play(150, 0.8, 0.8)
    later = await world.route()
    assert {one: arm_of(later, one, began) for one in IDS[:500]} == before


async def test_before_the_rollout_and_after_its_end_everything_is_stable():
    world, route = await at_stage(0)
    early = arm_of(route, IDS[0], world.clock() - timedelta(days=1))
    assert early is not None
    assert (early.arm, early.weight) == ("stable", 0.0)
    world.clock.advance(61)
    for _ in range(20):
        if (await world.rollout()).active:
            await world.play(100, 0.9, 0.0)
    assert canaries(world, await world.route()) == set()
