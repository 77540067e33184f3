"""Reverts: a promotion is undone in one write, whatever runs, and the queue is parked."""

from __future__ import annotations

import pytest

from ratchet.bus.testing import Killed
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL
from ratchet.core.contract import Alert, ModelDeployed, ModelRollout
from ratchet.core.contract.reward import RewardComponent
from ratchet.core.contract.state import Route
from ratchet.core.errors import Conflict
from ratchet.core.rules.arms import arm_of
from tests.support.canary_world import (
    ROLE,
    CanaryWorld,
    reward_of,
    served,
    start_of,
    started_id,
    turn_of,
)


async def promoted(*versions: int) -> CanaryWorld:
    """A world in which the second of two policies was just promoted."""
    world = await CanaryWorld().with_policies(*versions)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "looks fine", override=True))
    return world


async def test_revert_undoes_a_promotion_in_one_write_and_parks_the_queue() -> None:
    world = await promoted(1, 2)
    asked = {name: len(gate.asked) for name, gate in world.gates.items()}
    for gate in world.gates.values():
        gate.outcome = FAILED
    before = world.bus.faults.log.count(f"policies/{ROLE}")
    await world.operators.act(Act.REVERT, Order("ann", "it answers nonsense"))
    route = await world.route()
    assert (route.stable, route.previous, route.canary) == (served(1), None, None)
    assert world.bus.faults.log.count(f"policies/{ROLE}") == before + 1
    assert [await world.stage_of(version) for version in (1, 2)] == ["stable", "rolled_back"]
    assert {name: len(gate.asked) for name, gate in world.gates.items()} == asked
    decision = world.bus.published(ModelRollout)[-1]
    assert (decision.verdict, decision.from_version, decision.to_version) == ("revert", 2, 1)
    assert decision.stage.weight == 1.0
    deployed = world.bus.published(ModelDeployed)[-2:]
    assert [(one.policy_version, one.state) for one in deployed] == [(1, "promoted"), (2, "rolled_back")]
    await world.register(3)
    await world.controller.step()
    assert (await world.rollout()).state == "reverted"
    assert await world.stage_of(3) == "registered"
    for gate in world.gates.values():
        gate.outcome = "passed"
    await world.operators.act(Act.RESUME, Order("ann", "go on"))
    assert (await world.until("running")).candidate == served(3)
    assert first_break(world.bus.published(ModelRollout)) is None


@pytest.mark.parametrize("state", ["gating", "awaiting_approval", "running", "paused", "held"])
async def test_revert_wins_whatever_runs_and_ends_it_in_the_same_decision(state: str) -> None:
    world = await promoted(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL if state == "awaiting_approval" else "passed"
    await world.register(3)
    await world.until("gating" if state == "held" else state if state != "paused" else "running")
    if state == "paused":
        await world.operators.act(Act.PAUSE, Order("ann", "wait"))
    if state == "held":
        await world.until("running")
        world.clock.advance(3601)
        await world.controller.step()
    assert (await world.rollout()).state == state
    decisions = len(world.bus.published(ModelRollout))
    await world.operators.act(Act.REVERT, Order("ann", "back"))
    assert len(world.bus.published(ModelRollout)) == decisions + 1
    route = await world.route()
    assert (route.stable, route.canary) == (served(1), None)
    ended = "registered" if state in ("gating", "awaiting_approval") else "rolled_back"
    assert [await world.stage_of(version) for version in (1, 2, 3)] == ["stable", "rolled_back", ended]


async def test_a_revert_during_the_soak_ends_the_promotion_that_is_under_way() -> None:
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    done = await world.operators.act(Act.REVERT, Order("ann", "no"))
    assert (done.state, done.parked) == ("rolled_back", True)
    assert ((await world.route()).stable, await world.stage_of(2)) == (served(1), "rolled_back")


def arm_is(route: Route, trajectory_id: str, arm: str) -> bool:
    given = arm_of(route, trajectory_id)
    return given is not None and given.arm == arm


async def test_a_revert_of_a_soak_that_is_held_for_a_person_ends_it_too() -> None:
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    route = await world.route()
    canary = next(one for one in (started_id(world.clock(), n) for n in range(50)) if arm_is(route, one, "canary"))
    unsafe = {"safety": RewardComponent(score=0.0, weight=0.1, source="automated")}
    reward = reward_of(canary, success=True, reward_components=unsafe)
    world.bus.arrive([start_of(canary, "canary", 2, 0.95, route), turn_of(canary, "canary", 2, 0.95), reward])
    await world.until("held")
    assert [alert.severity for alert in world.bus.published(Alert) if not alert.cleared] == ["warning"]
    done = await world.operators.act(Act.REVERT, Order("ann", "no"))
    assert (done.state, done.parked) == ("rolled_back", True)
    assert ((await world.route()).stable, await world.stage_of(2)) == (served(1), "rolled_back")


async def test_there_is_nothing_to_revert_twice() -> None:
    world = await promoted(1, 2)
    await world.operators.act(Act.REVERT, Order("ann", "back"))
    with pytest.raises(Conflict, match="no predecessor to go back to: roll out another version with"):
        await world.operators.act(Act.REVERT, Order("ann", "and forth"))


async def reasons(world: CanaryWorld, *versions: int) -> list[str | None]:
    return [(await world.policies.version(ROLE, version)).reason for version in versions]


async def test_a_resume_after_a_revert_keeps_the_reasons_of_the_revert() -> None:
    world = await promoted(1, 2)
    await world.register(3)
    await world.until("gating")
    await world.operators.act(Act.REVERT, Order("ann", "it answers nonsense"))
    assert await reasons(world, 1, 2, 3) == ["it answers nonsense"] * 3
    await world.operators.act(Act.RESUME, Order("ann", "the prompt is fixed"))
    assert (await world.rollout()).reason == "the prompt is fixed"
    assert await reasons(world, 1, 2, 3) == ["it answers nonsense"] * 3


async def test_resume_after_a_revert_in_the_soak_keeps_the_reason_of_the_revert() -> None:
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    await world.operators.act(Act.REVERT, Order("ann", "it answers nonsense"))
    await world.operators.act(Act.RESUME, Order("ann", "the prompt is fixed"))
    assert await reasons(world, 2) == ["it answers nonsense"]


@pytest.mark.parametrize("moment", ["before", "half done", "after"])
async def test_a_kill_at_any_write_of_a_revert_changes_nothing_in_the_end(moment: str) -> None:
    plain = await promoted(1, 2)
    first = plain.bus.faults.writes
    await plain.operators.act(Act.REVERT, Order("ann", "back"))
    for at in range(first + 1, plain.bus.faults.writes + 1):
        world = await promoted(1, 2)
        world.bus.faults.at, world.bus.faults.after_effect = at, moment == "after"
        world.bus.faults.half_done = moment == "half done"
        with pytest.raises(Killed):
            await world.operators.act(Act.REVERT, Order("ann", "back"))
        world.restart()
        world.controller.wake()  # so that a step with nothing to do does not wait
        await world.controller.step()
        if (await world.rollout()).state != "reverted":
            await world.operators.act(Act.REVERT, Order("ann", "back"))
        assert ((await world.route()).stable, (await world.rollout()).outbox) == (served(1), ())
        assert [await world.stage_of(version) for version in (1, 2)] == ["stable", "rolled_back"]
        assert first_break(world.bus.published(ModelRollout)) is None
