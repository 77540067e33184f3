"""Canaries of planners: workflows are started and rewarded as trajectories, and have no calls of their own."""

from __future__ import annotations

from ratchet.core.contract import ModelRollout
from tests.support.canary_world import CanaryWorld, served


async def test_worse_planner_is_rolled_back_by_its_workflows() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await world.play_to_the_end(stable=0.9, canary=0.2, called=False) == "rolled_back"
    assert ((await world.route()).stable, (await world.route()).canary) == (served(1), None)
    last = world.bus.published(ModelRollout)[-1]
    assert last.e_values["rollback"]["combined"] >= 33, last.reason


async def test_planner_that_is_as_good_is_promoted_by_its_workflows() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await world.play_to_the_end(stable=0.9, canary=0.9, called=False) == "promoted"
    assert (await world.route()).stable == served(2)
