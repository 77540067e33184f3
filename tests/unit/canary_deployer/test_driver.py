"""A role's controller: from a registered policy to a verdict, operators' acts, and a kill between any two writes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ratchet.bus.kv import Entry
from ratchet.bus.message import Cause
from ratchet.bus.testing import FakeBucket, Killed, eventually
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, GateResult, IllegalMove, Rollout
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Budget, Stage
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.leadership import NotLeading
from ratchet.canary_deployer.nats_events import Places
from ratchet.contract import Alert, ModelDeployed, ModelRollout, named_id
from ratchet.contract.reward import RewardComponent
from ratchet.contract.state import POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, PolicyVersion, Route
from ratchet.errors import BusUnavailable, Conflict, NotFound, Unavailable
from ratchet.rules.arms import arm_of, weight_at
from tests.support.canary_world import (
    ROLE,
    CanaryWorld,
    FakeEvents,
    FakeSource,
    policy,
    quick_rules,
    reward_of,
    served,
    start_of,
    started_id,
    turn_of,
)


def shown(rollout: Rollout) -> Statistics:
    """The statistics, whatever the chunks are called in which the trajectories are stored."""
    return msgspec.structs.replace(rollout.statistics, chunks=())


async def advanced(world: CanaryWorld, stable: float, canary: float, rounds: int = 60) -> str:
    """Play trajectories, a minute per round, until the rollout has ended."""
    for _ in range(rounds):
        rollout = await world.rollout()
        if not rollout.active:
            return rollout.state
        world.clock.advance(61)
        await world.play(40, stable, canary)
    raise AssertionError((await world.rollout()).reason)


async def test_a_better_policy_moves_through_every_stage_and_becomes_stable():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await advanced(world, stable=0.5, canary=0.9) == "promoted"
    route = await world.route()
    assert (route.stable, route.previous, route.canary) == (served(2), served(1), None)
    assert (await world.stage_of(1), await world.stage_of(2)) == ("archived", "stable")
    decisions = world.bus.published(ModelRollout)
    assert [d.verdict for d in decisions] == ["start", "advance", "advance", "promote", "promote"]
    assert [d.stage.weight for d in decisions] == [0.1, 0.25, 0.5, 0.95, 1.0]
    deployed = world.bus.published(ModelDeployed)
    assert [d.state for d in deployed] == ["canary", "canary", "canary", "canary", "promoted"]
    assert [d.deployment_config.traffic_percentage for d in deployed] == [10, 25, 50, 95, 100]
    assert first_break(decisions) is None
    assert route.audit_hash == decisions[-1].hash


async def test_a_worse_policy_is_rolled_back_and_its_data_released():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await advanced(world, stable=0.9, canary=0.2) == "rolled_back"
    route = await world.route()
    assert (route.stable, route.canary) == (served(1), None)
    assert (await world.stage_of(1), await world.stage_of(2)) == ("stable", "rolled_back")
    last = world.bus.published(ModelRollout)[-1]
    assert last.verdict == "roll_back"
    assert last.e_values["rollback"]["combined"] >= 33
    assert world.bus.published(ModelDeployed)[-1].state == "rolled_back"
    assert [alert.severity for alert in world.bus.published(Alert)] == ["critical"]


async def test_a_rollback_takes_one_step_and_writes_the_route_right_after_the_decision():
    world = await CanaryWorld(quick_rules(budget=Budget(evidence=0.5))).with_policies(1, 2)
    await world.until("running")
    ids = [named_id("failing", number) for number in range(6)]
    route = await world.route()
    world.bus.arrive([start_of(one, "canary", 2, 0.1, route) for one in ids])
    world.bus.arrive([turn_of(one, "canary", 2, 0.1) for one in ids])
    world.bus.arrive([reward_of(one, success=False) for one in ids])
    await world.controller.step()
    assert (await world.rollout()).state == "rolled_back"
    assert world.bus.faults.log[-6:] == [
        "rollouts/support",
        "policies/support",
        "policies/support.2",
        "publish",
        "publish",
        "rollouts/support",
    ]


async def test_a_rollout_whose_streams_were_made_anew_is_rolled_back_with_the_reason():
    world = await CanaryWorld().with_policies(1, 2)
    world.bus.arrive([start_of(named_id("before"), "stable", 1, 0.0, await world.route())])
    await world.until("running")
    world.bus.broker.streams["RL_STARTS"].make_anew()
    world.restart()
    rollout = await world.until("rolled_back")
    assert "made anew" in rollout.reason


async def test_decisions_answer_the_registration_and_everything_else_a_decision():
    world = await CanaryWorld().with_policies(1)
    told = Cause(event_id=named_id("completed"), correlation_id=named_id("request"))
    candidate = policy(2, cause=told)
    await world.bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.2", candidate)
    world.gates["heldout_tasks"].outcome = FAILED
    await world.until("refused")
    events = world.bus.stored("RL_DEPLOYMENTS") + world.bus.stored("RL_ALERTS")
    decision, deployed, alert = events
    registered = Announcer("http://127.0.0.1:8080").registration(candidate, candidate.created_at)
    assert [type(one.message) for one in events] == [ModelRollout, ModelDeployed, Alert]
    assert decision.causation_id == registered.event_id
    assert {deployed.causation_id, alert.causation_id} == {decision.event_id}
    assert {one.correlation_id for one in events} == {told.correlation_id}


async def test_a_gate_that_fails_refuses_the_candidate_without_traffic():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = FAILED
    rollout = await world.until("refused")
    assert rollout.reason == "gate heldout_tasks: heldout_tasks failed"
    assert await world.stage_of(2) == "refused"
    refused = await world.policies.version("support", 2)
    assert refused.gate is not None
    assert refused.gate["heldout_tasks"]["outcome"] == "failed"
    assert (await world.route()).canary is None
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["refuse"]
    (deployed,) = world.bus.published(ModelDeployed)
    assert (deployed.state, deployed.validation_results.benchmark_passed) == ("aborted", False)


async def test_the_first_policy_of_a_role_is_stable_after_load_and_warmup():
    world = CanaryWorld()
    await world.bus.bucket("policies", type(policy(1))).put("support.1", policy(1))
    rollout = await world.until("promoted")
    assert rollout.reason == "first policy of the role"
    assert (await world.route()).stable == served(1)
    assert world.gates["heldout_tasks"].asked == []
    (deployed,) = world.bus.published(ModelDeployed)
    assert (deployed.state, deployed.deployment_config.rollout_strategy) == ("promoted", "immediate")


async def register(world: CanaryWorld, version: int) -> None:
    """One more candidate."""
    await world.bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.{version}", policy(version))
    world.controller.wake()


async def test_the_newest_candidate_begins_and_older_ones_are_superseded_and_announced():
    world = await CanaryWorld().with_policies(1, 2, 3, 4)
    rollout = await world.until("running")
    assert rollout.candidate == served(4)
    assert [await world.stage_of(version) for version in (2, 3)] == ["superseded", "superseded"]
    gone = [one for one in world.bus.published(ModelDeployed) if one.state == "superseded"]
    assert [(one.policy_version, one.reason) for one in gone] == [
        (version, f"superseded by {served(4).name} before it met traffic") for version in (2, 3)
    ]


async def test_a_candidate_that_waits_for_approval_is_superseded_with_a_new_salt_and_no_evidence():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    before = await world.until("awaiting_approval")
    await register(world, 3)
    await world.controller.step()
    assert (await world.rollout()).state == "superseded"
    assert await world.stage_of(2) == "superseded"
    world.gates["heldout_tasks"].outcome = "passed"
    after = await world.until("running")
    assert after.candidate == served(3)
    assert after.salt != before.salt
    assert after.statistics == before.statistics == Statistics()
    decisions = world.bus.published(ModelRollout)
    assert [d.verdict for d in decisions] == ["hold", "supersede", "start"]
    assert first_break(decisions) is None


async def test_a_canary_with_traffic_is_superseded_only_after_its_deadline():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await register(world, 3)
    await world.controller.step()
    assert (await world.rollout()).candidate == served(2)
    world.clock.advance(3601)
    await world.controller.step()
    assert (await world.rollout()).state == "held"
    world.clock.advance(31)
    await world.controller.step()
    assert (await world.rollout()).reason == f"superseded by {served(3).name} after its deadline"
    assert (await world.route()).canary is None
    assert (await world.until("running")).candidate == served(3)


async def test_what_an_operator_started_is_not_superseded():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NEEDS_APPROVAL
    await world.operators.start(policy(2), Order("ann", "this one"))
    await world.until("awaiting_approval")
    await register(world, 3)
    await world.operators.act(Act.APPROVE, Order("ann", "yes"))
    assert (await world.rollout()).candidate == served(2)


async def test_approve_starts_the_canary_of_what_waits_and_promote_does_not():
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


async def test_an_undecided_canary_is_promoted_by_override_only():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    with pytest.raises(Conflict, match=r"is undecided .* `ratchet rollout promote support --override`"):
        await world.operators.act(Act.PROMOTE, Order("ann", "we need it"))
    assert (await world.route()).stable == served(1)


async def promoted(*versions: int) -> CanaryWorld:
    """A world in which the second of two policies was just promoted."""
    world = await CanaryWorld().with_policies(*versions)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "looks fine", override=True))
    return world


async def test_revert_undoes_a_promotion_in_one_write_without_gates_and_parks_the_queue():
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
    await register(world, 3)
    await world.controller.step()
    assert (await world.rollout()).state == "reverted"
    assert await world.stage_of(3) == "registered"
    for gate in world.gates.values():
        gate.outcome = "passed"
    await world.operators.act(Act.RESUME, Order("ann", "go on"))
    assert (await world.until("running")).candidate == served(3)
    assert first_break(world.bus.published(ModelRollout)) is None


@pytest.mark.parametrize("state", ["gating", "awaiting_approval", "running", "paused", "held"])
async def test_revert_wins_whatever_runs_and_ends_it_in_the_same_decision(state: str):
    world = await promoted(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL if state == "awaiting_approval" else "passed"
    await register(world, 3)
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


async def with_lost_chunks(in_their_place: bytes | None = None) -> CanaryWorld:
    """A canary whose trajectories somebody deleted from the bucket, or replaced, before a deployer that starts anew."""
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(40, 0.7, 0.7)
    world.clock.advance(10)
    await world.controller.step()
    chunks = world.bus.bucket(ROLLOUT_CHUNKS, Chunk)
    names = await chunks.keys()
    assert names
    for name in names:
        await chunks.delete(name)
        if in_their_place is not None:
            await world.bus.bucket(ROLLOUT_CHUNKS, msgspec.Raw).put(name, msgspec.Raw(in_their_place))
    world.restart()
    return world


async def test_a_rollout_whose_trajectories_are_gone_ends_since_nothing_can_be_proven():
    world = await with_lost_chunks()
    rollout = await world.until("rolled_back")
    assert "trajectories of the rollout are gone" in rollout.reason
    assert ((await world.route()).stable, (await world.route()).canary) == (served(1), None)


async def test_trajectories_that_cannot_be_read_are_gone_and_hold_up_no_operator():
    world = await with_lost_chunks(b'{"of": "another version"}')
    assert (await world.operators.act(Act.ROLLBACK, Order("ann", "now"))).state == "rolled_back"
    world = await with_lost_chunks(b"\xff")
    assert "trajectories of the rollout cannot be read" in (await world.until("rolled_back")).reason


@pytest.mark.parametrize("act", [Act.ROLLBACK, Act.PAUSE])
async def test_an_operator_does_not_wait_for_trajectories_that_are_gone(act: Act):
    world = await with_lost_chunks()
    done = await world.operators.act(act, Order("ann", "now"))
    assert done.state == {Act.ROLLBACK: "rolled_back", Act.PAUSE: "paused"}[act]
    await world.until("rolled_back")


async def test_a_revert_during_the_soak_ends_the_promotion_that_is_under_way():
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    done = await world.operators.act(Act.REVERT, Order("ann", "no"))
    assert (done.state, done.parked) == ("rolled_back", True)
    assert ((await world.route()).stable, await world.stage_of(2)) == (served(1), "rolled_back")


def arm_is(route: Route, trajectory_id: str, arm: str) -> bool:
    given = arm_of(route, trajectory_id)
    return given is not None and given.arm == arm


async def test_a_revert_of_a_soak_that_is_held_for_a_person_ends_it_too():
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    route = await world.route()
    canary = next(one for one in (started_id(world.clock(), n) for n in range(50)) if arm_is(route, one, "canary"))
    unsafe = {"safety": RewardComponent(score=0.0, weight=0.1, source="automated")}
    reward = reward_of(canary, success=True, reward_components=unsafe)
    world.bus.arrive([start_of(canary, "canary", 2, 0.95, route), turn_of(canary, "canary", 2, 0.95), reward])
    await world.until("held")
    assert [alert.severity for alert in world.bus.published(Alert)] == ["warning"]
    done = await world.operators.act(Act.REVERT, Order("ann", "no"))
    assert (done.state, done.parked) == ("rolled_back", True)
    assert ((await world.route()).stable, await world.stage_of(2)) == (served(1), "rolled_back")


async def test_there_is_nothing_to_revert_twice():
    world = await promoted(1, 2)
    await world.operators.act(Act.REVERT, Order("ann", "back"))
    with pytest.raises(Conflict, match="no predecessor to go back to: roll out another version with"):
        await world.operators.act(Act.REVERT, Order("ann", "and forth"))


async def reasons(world: CanaryWorld, *versions: int) -> list[str | None]:
    return [(await world.policies.version(ROLE, version)).reason for version in versions]


async def test_a_resume_after_a_revert_keeps_the_reasons_of_the_revert():
    world = await promoted(1, 2)
    await register(world, 3)
    await world.until("gating")
    await world.operators.act(Act.REVERT, Order("ann", "it answers nonsense"))
    assert await reasons(world, 1, 2, 3) == ["it answers nonsense"] * 3
    await world.operators.act(Act.RESUME, Order("ann", "the prompt is fixed"))
    assert (await world.rollout()).reason == "the prompt is fixed"
    assert await reasons(world, 1, 2, 3) == ["it answers nonsense"] * 3


async def test_a_resume_after_a_revert_in_the_soak_keeps_the_reason_of_the_revert():
    world = await CanaryWorld(strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    await world.operators.act(Act.REVERT, Order("ann", "it answers nonsense"))
    await world.operators.act(Act.RESUME, Order("ann", "the prompt is fixed"))
    assert await reasons(world, 2) == ["it answers nonsense"]


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_kill_at_any_write_of_a_revert_changes_nothing_in_the_end(after_effect: bool):
    plain = await promoted(1, 2)
    first = plain.bus.faults.writes
    await plain.operators.act(Act.REVERT, Order("ann", "back"))
    for at in range(first + 1, plain.bus.faults.writes + 1):
        world = await promoted(1, 2)
        world.bus.faults.at, world.bus.faults.after_effect = at, after_effect
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


async def test_a_refused_policy_can_be_started_by_override_and_is_marked_so():
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
    assert await advanced(world, stable=0.9, canary=0.1) == "rolled_back"


async def test_an_override_does_not_waive_the_probe():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"].outcome = FAILED
    await world.until("refused")
    await world.operators.start(await world.policies.version("support", 2), Order("ann", "try", override=True))
    rollout = await world.until("refused")
    assert rollout.override
    assert rollout.reason.startswith("gate probe")


async def test_a_candidate_without_heldout_evidence_waits_for_approval():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    assert (await world.route()).canary is None
    await world.operators.start(await world.policies.version("support", 2), Order("ann", "looked at it"))
    rollout = await world.until("running")
    assert rollout.approval == "manual_approved"
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["hold", "start"]


async def test_pause_freezes_the_stage_but_not_the_alarm():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    world.clock.advance(500)
    await world.play(100, 0.9, 0.9)
    assert (await world.rollout()).stage == 0
    await advanced(world, stable=0.95, canary=0.0)
    assert (await world.rollout()).state == "rolled_back"


async def test_resume_goes_on_with_a_new_deadline():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    world.clock.advance(3000)
    resumed = await world.operators.act(Act.RESUME, Order("ann", "back"))
    assert resumed.age_s == 0
    world.clock.advance(3000)
    await world.controller.step()
    assert (await world.rollout()).state == "running"


async def test_undecided_at_the_deadline_holds_and_asks():
    world = await CanaryWorld(quick_rules(margin=0.01)).with_policies(1, 2)
    await world.until("running")
    for _ in range(4):
        world.clock.advance(61)
        await world.play(40, 0.8, 0.8)
    world.clock.advance(3600)
    await world.controller.step()
    rollout = await world.rollout()
    assert rollout.state == "held"
    assert "undecided at the deadline" in rollout.reason
    assert (await world.route()).canary is not None
    assert world.bus.published(Alert)[-1].severity == "warning"


async def test_operators_may_promote_against_the_evidence_and_that_is_recorded():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "we need it now", override=True))
    assert (await world.route()).stable == served(2)
    deployed = world.bus.published(ModelDeployed)[-1]
    assert deployed.metadata.approval_status == "emergency_override"
    assert (deployed.metadata.deployed_by, deployed.reason) == ("ann", "we need it now")


@pytest.mark.parametrize("act", [Act.ROLLBACK, Act.ABORT])
async def test_a_rollback_ends_the_canary_at_once(act: Act):
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(act, Order("ann", "wrong data"))
    assert (await world.route()).canary is None
    assert await world.stage_of(2) == "rolled_back"
    assert world.bus.published(ModelDeployed)[-1].state == "rolled_back"
    with pytest.raises(IllegalMove, match="cannot pause a rollout that is rolled_back: possible: start, revert"):
        await world.operators.act(Act.PAUSE, Order("ann", "too late"))


async def test_a_rollback_that_comes_between_two_steps_is_not_undone_by_the_next_renewal() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.clock.advance(6)
    lock = world.controller.store.lock
    async with lock:
        step = asyncio.create_task(world.controller.step())
        rollback = asyncio.create_task(world.operators.act(Act.ROLLBACK, Order("ann", "now")))
        await asyncio.sleep(
            0
        )  # both wait for the lock: the step reads the record, then comes the operator, then the lease
    await asyncio.gather(step, rollback)
    assert (await world.rollout()).state == "rolled_back"
    assert (await world.route()).canary is None


async def test_acts_in_the_wrong_state_are_refused():
    world = await CanaryWorld().with_policies(1, 2, 3)
    with pytest.raises(NotFound, match="no rollout of support yet"):
        await world.operators.act(Act.PAUSE, Order("ann", "early"))
    await world.until("running")
    with pytest.raises(IllegalMove, match="cannot resume a rollout that is running"):
        await world.operators.act(Act.RESUME, Order("ann", "eager"))
    with pytest.raises(Conflict, match="has a rollout of support@3-33333333 that is running: end it with `ratchet"):
        await world.operators.start(await world.policies.version("support", 2), Order("ann", "next"))
    await world.operators.act(Act.ABORT, Order("ann", "stop"))
    with pytest.raises(Conflict, match="already the stable policy"):
        await world.operators.start(await world.policies.version("support", 1), Order("ann", "again"))


@pytest.mark.parametrize("state", ["running", "paused", "held"])
async def test_the_lease_grows_in_every_state_with_traffic(state: str):
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


async def test_a_restart_resumes_the_statistics():
    rules = quick_rules(stages=(Stage(0.4, 1e9, 5),))  # one weight: a restart makes a stage longer, never the order
    worlds = [await CanaryWorld(rules).with_policies(1, 2) for _ in range(2)]
    for number, world in enumerate(worlds):
        await world.until("running")
        for round_ in range(6):
            world.clock.advance(61)
            await world.play(30, 0.8, 0.8)
            if number == 1 and round_ % 2:
                world.restart()
        await world.controller.step()
    plain, restarted = [await world.rollout() for world in worlds]
    assert restarted.stage == plain.stage
    assert shown(restarted) == shown(plain)
    assert restarted.statistics.stable.trajectories > 50


async def test_statistics_folded_after_the_last_save_are_folded_again_after_a_kill():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(30, 0.8, 0.8)
    await world.play(30, 0.8, 0.8)
    seen = await world.controller.current()
    stored = await world.rollout()
    assert seen is not None
    assert stored.reward_seq < seen.reward_seq
    world.restart()
    world.clock.advance(2)
    await world.controller.step()
    again = await world.rollout()
    assert (shown(again), again.reward_seq) == (shown(seen), seen.reward_seq)


async def test_the_last_statistics_are_saved_although_nothing_follows():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(10, 0.8, 0.8)
    assert (await world.rollout()).statistics.stable.trajectories == 0
    world.clock.advance(2)
    await world.controller.step()
    saved = await world.rollout()
    assert saved.statistics.stable.trajectories > 0
    writes = world.bus.faults.writes
    world.clock.advance(2)
    await world.controller.step()
    assert world.bus.faults.writes == writes


SHORT = quick_rules(stages=(Stage(0.4, 60, 5), Stage(0.5, 60, 5)))


async def scenario(world: CanaryWorld) -> None:
    """A rollout that advances by itself and is then promoted by an operator; goes on where it was cut off."""
    await world.until("running", "promoted")
    if world.played == 0:
        await world.play(25, 0.8, 0.8)
    for _ in range(4):
        rollout = await world.rollout()
        if rollout.active and (rollout.stage == 0 or rollout.outbox):
            world.clock.advance(61)
            await world.controller.step()
    if (await world.rollout()).active:
        await world.operators.act(Act.PROMOTE, Order("ann", "fine", override=True))
    await world.until("promoted")


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_kill_at_any_write_changes_nothing_in_the_end(after_effect: bool):
    plain = await CanaryWorld(SHORT).with_policies(1, 2)
    first = plain.bus.faults.writes
    await scenario(plain)
    writes = plain.bus.faults.writes
    assert writes - first > 15
    for at in range(first + 1, writes + 1):
        world = await CanaryWorld(SHORT).with_policies(1, 2)
        world.bus.faults.at, world.bus.faults.after_effect = at, after_effect
        with pytest.raises(Killed):
            await scenario(world)
        world.restart()
        await scenario(world)
        rollout, expected = await world.rollout(), await plain.rollout()
        assert (rollout.state, rollout.outbox, shown(rollout)) == (expected.state, (), shown(expected))
        assert (await world.route()).stable == served(2)
        assert [await world.stage_of(v) for v in (1, 2)] == ["archived", "stable"]
        decisions = world.bus.published(ModelRollout)
        assert [d.verdict for d in decisions] == ["start", "advance", "promote"]
        assert [d.state for d in world.bus.published(ModelDeployed)] == ["canary", "canary", "promoted"]
        assert first_break(decisions) is None


async def test_a_broker_that_does_not_answer_is_a_passing_fault():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.clock.advance(61)
    chunks = 2  # 200 trajectories
    world.bus.unavailable_at(world.bus.faults.writes + chunks + 2)
    world.bus.faults.after_effect = True
    with pytest.raises(BusUnavailable):
        await world.play(200, 0.8, 0.8)
    rollout = await world.rollout()
    assert (rollout.stage, len(rollout.outbox)) == (1, 2)
    await world.controller.step()
    assert (await world.rollout()).outbox == ()
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["start", "advance"]


async def test_an_act_after_a_fault_does_not_lose_the_decision_before_it():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.bus.unavailable_at(world.bus.faults.writes + 2)
    with pytest.raises(BusUnavailable):
        await world.operators.act(Act.PAUSE, Order("ann", "lunch"))
    assert (await world.rollout()).outbox
    await world.operators.act(Act.ABORT, Order("ann", "better not"))
    decisions = world.bus.published(ModelRollout)
    assert [d.verdict for d in decisions] == ["start", "pause", "roll_back"]
    assert first_break(decisions) is None


async def test_a_second_deployer_on_the_same_role_reads_again_instead_of_overwriting():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    other = world.new_controller()
    await other.operators.act(Act.ABORT, Order("bob", "from the other one"))
    with pytest.raises(Conflict):
        await world.operators.act(Act.PROMOTE, Order("ann", "at the same time", override=True))
    current = await world.controller.current()
    assert current is not None
    assert (current.state, (await world.route()).stable) == ("rolled_back", served(1))


async def test_a_running_controller_stops_at_once_and_names_its_fault():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"] = BrokenGate()
    working = asyncio.create_task(world.controller.run())

    async def faulty() -> str | None:
        return world.controller.fault

    assert await eventually(faulty) == "the engine is away"
    await world.controller.stop()
    async with asyncio.timeout(5):
        await working
    assert (await world.rollout()).state == "gating"


async def test_a_gate_that_fails_by_itself_is_asked_less_and_less_often():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"] = FaultyGate()

    def pauses() -> list[float]:
        return [entry["again_in_s"] for entry in logs if entry["event"] == "rollout waits"]

    async def seven() -> bool:
        world.controller.wake()  # no test waits for a pause
        return len(pauses()) >= 7

    with capture_logs() as logs:
        working = asyncio.create_task(world.controller.run())
        await eventually(seven)
        await world.controller.stop()
        await working
    assert pauses()[:7] == [1, 2, 4, 8, 16, 30, 30]


async def test_a_route_that_is_deleted_or_set_back_under_a_rollout_is_made_true_again():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    before, routes = await world.route(), world.bus.bucket(POLICIES, Route)
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


async def of_an_earlier_version(world: CanaryWorld) -> None:
    """The record as a version wrote it whose statistics looked otherwise, and a deployer that starts anew."""
    records = world.bus.bucket(ROLLOUTS, msgspec.Raw)
    members = msgspec.json.decode(msgspec.json.encode(await world.rollout()))
    watch = {"pending": {"a trajectory": ["stable", 0.1]}, "stable": {"mean": 0.5}}
    await records.put(ROLE, msgspec.Raw(msgspec.json.encode({**members, "watch": watch, "looks": [1, 2]})))
    world.restart()


@pytest.mark.parametrize("act", [None, Act.ROLLBACK])
async def test_a_rollout_of_an_earlier_version_is_rolled_back_since_nothing_is_known_of_its_traffic(act: Act | None):
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await of_an_earlier_version(world)
    if act is not None:
        await world.operators.act(act, Order("ann", "now"))
    else:
        await world.controller.step()
    ended = await world.until("rolled_back")
    assert ended.reason == "now" if act else ended.reason.startswith("statistics of the rollout cannot be read")
    assert (await world.route()).canary is None
    assert first_break(world.bus.published(ModelRollout)) is None


async def test_what_ended_or_waits_since_an_earlier_version_holds_up_nobody():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    await of_an_earlier_version(world)
    assert (await world.operators.act(Act.APPROVE, Order("ann", "go"))).state == "running"
    await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    await of_an_earlier_version(world)
    await world.bus.bucket(POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
    await world.controller.step()
    assert (await world.until("awaiting_approval")).candidate == served(3)
    assert (await world.operators.act(Act.REVERT, Order("ann", "back"))).candidate == served(1)
    assert first_break(world.bus.published(ModelRollout)) is None


async def test_a_policy_that_cannot_be_read_keeps_no_other_from_its_rollout():
    world = await CanaryWorld().with_policies(1, 3)
    await world.bus.bucket(POLICIES, msgspec.Raw).put(f"{ROLE}.2", msgspec.Raw(b"{"))
    await world.bus.bucket(POLICIES, msgspec.Raw).put(f"{ROLE}.notes", msgspec.Raw(b"{}"))
    assert (await world.until("running")).candidate == served(3)
    await world.bus.bucket(POLICIES, msgspec.Raw).put(f"{ROLE}.4", msgspec.Raw(b"null"))
    new, is_new = await world.policies.register(ROLE, "another job", policy)
    assert (new.version, is_new) == (5, True)


@pytest.mark.parametrize("left", [None, b"{"], ids=["gone", "unreadable"])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_canary_ends_whatever_became_of_its_policies_entries(version: int, left: bytes | None):
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await lose_entry(world, version, left)
    world.restart()
    done = await world.operators.act(Act.ROLLBACK, Order("ann", "now"))
    assert (done.state, done.outbox, (await world.route()).canary) == ("rolled_back", (), None)


async def test_a_canary_whose_entry_is_gone_is_rolled_back_by_the_evidence_and_not_promoted():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await lose_entry(world, 2, None)
    with pytest.raises(NotFound):
        await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    assert (await world.route()).stable == served(1)
    assert await advanced(world, stable=0.9, canary=0.1) == "rolled_back"


async def test_a_promotion_is_undone_whatever_became_of_the_policies_entries():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    for version in (1, 2):
        await lose_entry(world, version, None)
    done = await world.operators.act(Act.REVERT, Order("ann", "back"))
    assert (done.state, done.outbox, (await world.route()).stable) == ("reverted", (), served(1))


async def lose_entry(world: CanaryWorld, version: int, left: bytes | None) -> None:
    """Somebody deletes a policy's entry, or leaves something else in its place."""
    bucket = world.bus.bucket(POLICIES, msgspec.Raw)
    await bucket.delete(f"{ROLE}.{version}")
    if left is not None:
        await bucket.put(f"{ROLE}.{version}", msgspec.Raw(left))


class BrokenSource(FakeSource):
    """The streams are there, and nobody can read them."""

    async def open(self, role: str, places: Places) -> FakeEvents:
        raise BusUnavailable("cannot read RL_REWARDS")


async def test_a_canary_whose_evidence_cannot_be_read_is_not_kept_alive():
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


class UnwritableRecords:
    """The records of rollouts are there, and nobody can change them: on a full stream, say."""

    def __init__(self, records: FakeBucket[Rollout]) -> None:
        self._records = records

    async def get(self, key: str) -> Entry[Rollout] | None:
        return await self._records.get(key)

    async def update(self, key: str, value: Rollout, revision: int) -> int:
        raise BusUnavailable("cannot write rollouts")


async def test_a_canary_whose_evidence_cannot_be_saved_is_not_kept_alive():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    records: Any = UnwritableRecords(world.bus.bucket(ROLLOUTS, Rollout))
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


async def test_a_leader_that_was_replaced_announces_nothing():
    world = await CanaryWorld().with_policies(1, 2, 3)
    world.lead.leading = False
    with pytest.raises(NotLeading):
        await world.controller.step()
    assert world.bus.stored("RL_DEPLOYMENTS") == []


async def test_latencies_that_nobody_measured_leave_a_record_that_can_be_read():
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    route, trajectory_id = await world.route(), started_id(world.clock(), 1)
    claim = (trajectory_id, "stable", 1, 0.1)
    turns = [turn_of(*claim, index=index, latency_ms=1.7e308) for index in range(2)]
    world.bus.arrive([start_of(*claim, route), *turns, reward_of(trajectory_id, success=True)])
    world.clock.advance(61)
    await world.controller.step()
    assert (await world.rollout()).statistics.stable.timed == 1


async def test_an_abort_ends_a_gate_that_is_still_running():
    world = await CanaryWorld().with_policies(1, 2)
    gate = world.gates["probe"] = EndlessGate()
    working = asyncio.create_task(world.controller.run())
    await gate.entered.wait()
    await world.operators.act(Act.ABORT, Order("ann", "never mind"))
    await gate.left.wait()
    assert (await world.rollout()).state == "aborted"
    await world.controller.stop()
    async with asyncio.timeout(5):
        await working


class BrokenGate:
    """Cannot say anything for now."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise Unavailable("the engine is away")


class FaultyGate:
    """Fails in a way that nobody has thought of."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise ValueError("not thought of")


class EndlessGate:
    """Never answers."""

    def __init__(self) -> None:
        self.entered, self.left = asyncio.Event(), asyncio.Event()

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError("unreachable")


@pytest.mark.parametrize("jump_s", [-7 * 86400, -600, 600, 30 * 86400])
async def test_a_clock_that_is_set_changes_no_stage_no_lease_no_deadline_and_no_soak(jump_s: float):
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


async def test_a_new_weight_replaces_the_old_one_although_the_clock_was_set_back():
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


async def test_time_in_which_nobody_watched_is_no_time_of_a_stage():
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


async def test_what_a_stage_has_lasted_survives_a_kill_up_to_the_last_lease():
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


async def test_the_event_names_every_check_and_claims_no_safety_suite_that_never_ran():
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NOT_RUN
    await world.until("running")
    told = world.bus.published(ModelDeployed)[-1].validation_results
    assert told.checks == {
        "probe": "passed",
        "warmup": "passed",
        "heldout_tasks": "passed",
        "approval": "not_run",
        "shadow_replay": "not_run",
        "safety_suite": "not_run",
    }
    assert (told.benchmark_passed, told.safety_checks_passed) == (True, False)
