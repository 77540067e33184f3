"""What operators order: approvals, pauses, promotions, rollbacks and starts, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, IllegalMove
from ratchet.core.contract import ModelDeployed, ModelRollout
from ratchet.core.errors import BusUnavailable, Conflict, NotFound
from tests.support.canary_world import (
    CanaryWorld,
    served,
)


async def test_approve_starts_the_canary_that_waits_and_promote_does_not() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    for override in (False, True):
        with pytest.raises(IllegalMove, match="that is awaiting_approval: approve it first; possible: approve"):
            await world.operators.act(Act.PROMOTE, Order("ann", "now", override=override))
    await world.operators.act(Act.APPROVE, Order("ann", "looked at it"))
    rollout = await world.rollout()
    assert (rollout.state, rollout.approval, rollout.weight) == ("running", "manual_approved", 0.1)
    with pytest.raises(IllegalMove, match="cannot approve a rollout that is running"):
        await world.operators.act(Act.APPROVE, Order("ann", "again"))


async def test_an_order_for_a_rollout_that_is_not_the_newest_any_more_is_refused() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    shown = await world.rollout()
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="is not the newest rollout any more: the newest one is of support@2"):
            await world.operators.act(Act.APPROVE, Order("ann", "seen", rollout_id="an older one"), dry_run=dry_run)
        with pytest.raises(Conflict, match="is not the newest rollout any more"):
            await world.operators.start(
                await world.policies.version("support", 2), Order("ann", "seen", rollout_id="older"), dry_run=dry_run
            )
    assert (await world.rollout()).state == "awaiting_approval"
    await world.operators.act(Act.APPROVE, Order("ann", "seen", rollout_id=shown.rollout_id))
    assert (await world.rollout()).state == "running"


async def test_an_undecided_canary_is_promoted_by_override_only() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    with pytest.raises(Conflict, match=r"is undecided .* `ratchet rollout promote support --override`"):
        await world.operators.act(Act.PROMOTE, Order("ann", "we need it"))
    assert (await world.route()).stable == served(1)


async def test_operators_may_promote_against_the_evidence_and_that_is_recorded() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "we need it now", override=True))
    assert (await world.route()).stable == served(2)
    deployed = world.bus.published(ModelDeployed)[-1]
    assert deployed.metadata.approval_status == "emergency_override"
    assert (deployed.metadata.deployed_by, deployed.reason) == ("ann", "we need it now")


async def test_a_refused_policy_can_be_started_by_override_and_is_marked_so() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = FAILED
    world.gates["heldout_tasks"].evidence = {"regression": True}
    await world.until("refused")
    await world.operators.start(
        await world.policies.version("support", 2), Order("ann", "rehearse a rollback", override=True)
    )
    rollout = await world.until("running")
    assert rollout.approval == "emergency_override"
    start = world.bus.published(ModelRollout)[-1]
    assert (start.verdict, start.actor, start.reason) == ("start", "ann", "rehearse a rollback")
    deployed = world.bus.published(ModelDeployed)[-1]
    assert deployed.metadata.approval_status == "emergency_override"
    assert deployed.validation_results.performance_regression
    assert deployed.validation_results.not_compared == ["safety_checks_passed"]
    assert await world.play_to_the_end(stable=0.9, canary=0.1) == "rolled_back"


async def test_an_override_does_not_waive_the_probe() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"].outcome = FAILED
    await world.until("refused")
    await world.operators.start(await world.policies.version("support", 2), Order("ann", "try", override=True))
    rollout = await world.until("refused")
    assert rollout.override
    assert rollout.reason.startswith("gate probe")


async def test_a_candidate_without_heldout_evidence_waits_for_approval() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    assert (await world.route()).canary is None
    await world.operators.start(await world.policies.version("support", 2), Order("ann", "looked at it"))
    rollout = await world.until("running")
    assert rollout.approval == "manual_approved"
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["hold", "start"]


async def test_pause_freezes_the_stage_but_not_the_alarm() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    world.clock.advance(500)
    await world.play(100, 0.9, 0.9)
    assert (await world.rollout()).stage == 0
    await world.play_to_the_end(stable=0.95, canary=0.0)
    assert (await world.rollout()).state == "rolled_back"


async def test_resume_goes_on_with_a_new_deadline() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    world.clock.advance(3000)
    resumed = await world.operators.act(Act.RESUME, Order("ann", "back"))
    assert resumed.age_s == 0
    world.clock.advance(3000)
    await world.controller.step()
    assert (await world.rollout()).state == "running"


async def test_a_rollback_ends_the_canary_at_once() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.ROLLBACK, Order("ann", "wrong data"))
    assert (await world.route()).canary is None
    assert await world.stage_of(2) == "rolled_back"
    assert world.bus.published(ModelDeployed)[-1].state == "rolled_back"
    with pytest.raises(IllegalMove, match="cannot pause a rollout that is rolled_back: possible: start, revert"):
        await world.operators.act(Act.PAUSE, Order("ann", "too late"))


async def test_rollback_between_two_steps_is_not_undone_by_the_next_renewal() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.clock.advance(6)
    lock = world.controller.store.lock
    async with lock:
        step = asyncio.create_task(world.controller.step())
        rollback = asyncio.create_task(world.operators.act(Act.ROLLBACK, Order("ann", "now")))
        # Both wait for the lock: the step reads the record, then comes the operator, then the lease.
        await asyncio.sleep(0)
    await asyncio.gather(step, rollback)
    assert (await world.rollout()).state == "rolled_back"
    assert (await world.route()).canary is None


async def test_acts_in_the_wrong_state_are_refused_with_acts_that_are_possible() -> None:
    world = await CanaryWorld().with_policies(1, 2, 3)
    with pytest.raises(NotFound, match="no rollout of support yet"):
        await world.operators.act(Act.PAUSE, Order("ann", "early"))
    await world.until("running")
    with pytest.raises(IllegalMove, match="cannot resume a rollout that is running"):
        await world.operators.act(Act.RESUME, Order("ann", "eager"))
    with pytest.raises(Conflict, match="has a rollout of support@3-33333333 that is running: end it with `ratchet"):
        await world.operators.start(await world.policies.version("support", 2), Order("ann", "next"))
    await world.operators.act(Act.ROLLBACK, Order("ann", "stop"))
    with pytest.raises(Conflict, match="already the stable policy"):
        await world.operators.start(await world.policies.version("support", 1), Order("ann", "again"))


async def test_an_act_after_a_fault_does_not_lose_the_decision_before_it() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.bus.unavailable_at(world.bus.faults.writes + 2)
    with pytest.raises(BusUnavailable):
        await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    assert (await world.rollout()).outbox
    await world.operators.act(Act.ROLLBACK, Order("ann", "better not"))
    decisions = world.bus.published(ModelRollout)
    assert [d.verdict for d in decisions] == ["start", "pause", "roll_back"]
    assert first_break(decisions) is None
