"""The controller of a role, from a registered policy to a verdict: gates, stages, succession, faults."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from ratchet.bus.kv import Bucket
from ratchet.bus.message import Cause
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Budget
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.core.contract import Alert, AuditEntry, ModelDeployed, ModelRollout, named_id
from ratchet.core.contract.state import POLICIES, PolicyVersion
from ratchet.core.errors import Unavailable
from ratchet.core.service.leadership import NotLeading
from tests.support.canary_world import (
    ROLE,
    CanaryWorld,
    policy,
    quick_rules,
    reward_of,
    served,
    start_of,
    turn_of,
)


async def test_a_better_policy_moves_through_every_stage_and_becomes_stable() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await world.play_to_the_end(stable=0.5, canary=0.9) == "promoted"
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


async def test_a_worse_policy_is_rolled_back_and_its_data_released() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await world.play_to_the_end(stable=0.9, canary=0.2) == "rolled_back"
    route = await world.route()
    assert (route.stable, route.canary) == (served(1), None)
    assert (await world.stage_of(1), await world.stage_of(2)) == ("stable", "rolled_back")
    last = world.bus.published(ModelRollout)[-1]
    assert last.verdict == "roll_back"
    assert last.e_values["rollback"]["combined"] >= 33
    assert world.bus.published(ModelDeployed)[-1].state == "rolled_back"
    assert [alert.severity for alert in world.bus.published(Alert) if not alert.cleared] == ["critical"]


async def test_rollback_takes_one_step_and_writes_the_route_right_after_decision() -> None:
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


async def test_candidate_gets_traffic_once_the_audit_log_has_the_decision() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("gating")
    world.bus.broker.refusing = True
    with pytest.raises(Unavailable, match="audit log"):
        await world.until("running")
    assert (await world.route()).canary is None
    world.bus.broker.refusing = False
    await world.until("running")
    (entry,) = world.bus.published(AuditEntry)
    assert (entry.act, entry.actor, entry.role) == ("start", "canary_deployer", ROLE)
    assert (entry.objects or [])[1:] == [policy(2).name]


async def test_worse_policy_is_rolled_back_though_the_audit_log_is_full() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.bus.broker.refusing = True
    assert await world.play_to_the_end(stable=0.9, canary=0.2) == "rolled_back"
    assert (await world.route()).canary is None


async def test_canary_that_is_undecided_at_deadline_is_held_and_alerts_operators() -> None:
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


async def test_decisions_answer_the_registration_and_everything_else_a_decision() -> None:
    world = await CanaryWorld().with_policies(1)
    completed = Cause(event_id=named_id("completed"), correlation_id=named_id("request"))
    candidate = policy(2, cause=completed)
    await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.2", candidate)
    world.gates["heldout_tasks"].outcome = FAILED
    await world.until("refused")
    events = world.bus.stored("RL_DEPLOYMENTS") + world.bus.stored("RL_ALERTS")
    decision, deployed, alert = events
    registered = Announcer("http://127.0.0.1:8080").registration(candidate, candidate.created_at)
    assert [type(one.message) for one in events] == [ModelRollout, ModelDeployed, Alert]
    assert decision.causation_id == registered.event_id
    assert {deployed.causation_id, alert.causation_id} == {decision.event_id}
    assert {one.correlation_id for one in events} == {completed.correlation_id}


async def test_event_names_every_check_and_claims_no_safety_suite_that_never_ran() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NOT_RUN
    await world.until("running")
    results = world.bus.published(ModelDeployed)[-1].validation_results
    assert results.checks == {
        "render": "not_run",
        "probe": "passed",
        "warmup": "passed",
        "takes_tools": "not_run",
        "heldout_tasks": "passed",
        "approval": "not_run",
        "shadow_replay": "not_run",
        "safety_suite": "not_run",
        "shadow_traffic": "not_run",
        "off_policy": "not_run",
    }
    assert (results.benchmark_passed, results.safety_checks_passed) == (True, False)


async def test_a_gate_that_fails_refuses_the_candidate_without_traffic() -> None:
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


async def test_the_first_policy_of_a_role_is_stable_after_load_and_warmup() -> None:
    world = CanaryWorld()
    await Bucket(world.bus, "policies", type(policy(1))).put("support.1", policy(1))
    rollout = await world.until("promoted")
    assert rollout.reason == "first policy of the role"
    assert (await world.route()).stable == served(1)
    assert world.gates["heldout_tasks"].asked == []
    (deployed,) = world.bus.published(ModelDeployed)
    assert (deployed.state, deployed.deployment_config.rollout_strategy) == ("promoted", "immediate")


async def test_newest_candidate_begins_and_older_ones_are_superseded() -> None:
    world = await CanaryWorld().with_policies(1, 2, 3, 4)
    rollout = await world.until("running")
    assert rollout.candidate == served(4)
    assert [await world.stage_of(version) for version in (2, 3)] == ["superseded", "superseded"]
    gone = [one for one in world.bus.published(ModelDeployed) if one.state == "superseded"]
    assert [(one.policy_version, one.reason) for one in gone] == [
        (version, f"superseded by {served(4).name} before it met traffic") for version in (2, 3)
    ]


async def test_superseded_candidate_in_approval_gets_a_new_salt_and_no_evidence() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    before = await world.until("awaiting_approval")
    await world.register(3)
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


async def test_candidate_supersedes_at_once_another_that_waits_for_approval() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    waiting = asyncio.create_task(world.controller.step())
    await asyncio.sleep(0)  # until it waits to be woken: the bus in memory answers at once
    await world.register(3)
    await waiting
    async with asyncio.timeout(10):
        await world.controller.step()
    assert await world.stage_of(2) == "superseded"


async def test_a_canary_with_traffic_is_superseded_only_after_its_deadline() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.register(3)
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


async def test_a_rollout_that_an_operator_started_is_not_superseded() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NEEDS_APPROVAL
    await world.operators.start(policy(2), Order("ann", "this one"))
    await world.until("awaiting_approval")
    await world.register(3)
    await world.operators.act(Act.APPROVE, Order("ann", "yes"))
    assert (await world.rollout()).candidate == served(2)


async def test_a_leader_that_was_replaced_announces_nothing() -> None:
    world = await CanaryWorld().with_policies(1, 2, 3)
    world.lead.leading = False
    with pytest.raises(NotLeading):
        await world.controller.step()
    assert world.bus.stored("RL_DEPLOYMENTS") == []


class BrokenGate:
    """Has no result yet."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise Unavailable("the engine is away")


async def test_a_running_controller_stops_at_once_and_names_its_fault() -> None:
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


class FaultyGate:
    """Fails in a way that it does not foresee."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise ValueError("not foreseen")


async def test_a_gate_with_a_fault_of_its_own_runs_less_and_less_often() -> None:
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


class DoubtfulGate:
    """Shows nothing, and asks for a pause."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise Inconclusive("one replica differs", 6)


async def test_a_check_in_doubt_is_repeated_after_its_own_pause() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"] = DoubtfulGate()

    async def waits() -> bool:
        return any(entry["event"] == "rollout waits" for entry in logs)

    with capture_logs() as logs:
        working = asyncio.create_task(world.controller.run())
        await eventually(waits)
        await world.controller.stop()
        await working
    (pause,) = {entry["again_in_s"] for entry in logs if entry["event"] == "rollout waits"}
    assert pause == 32


class QuotingGate:
    """Shows nothing, and repeats what an engine answered."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        raise Inconclusive("the engine cannot answer now: busy with a private matter", 1).quoting()


async def test_an_engines_words_stand_in_the_status_and_in_no_log() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["probe"] = QuotingGate()

    async def waits() -> bool:
        return world.controller.fault is not None

    with capture_logs() as logs:
        working = asyncio.create_task(world.controller.run())
        await eventually(waits)
        fault = world.controller.fault
        await world.controller.stop()
        await working
    assert fault == "the engine cannot answer now: busy with a private matter"
    assert "rollout waits" in {entry["event"] for entry in logs}
    assert "private matter" not in str(logs)


class EndlessGate:
    """Never returns."""

    def __init__(self) -> None:
        self.entered, self.left = asyncio.Event(), asyncio.Event()

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError("unreachable")


async def test_an_abort_ends_a_gate_that_is_still_running() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    gate = world.gates["probe"] = EndlessGate()
    working = asyncio.create_task(world.controller.run())
    await gate.entered.wait()
    await world.operators.act(Act.ROLLBACK, Order("ann", "never mind"))
    await gate.left.wait()
    assert (await world.rollout()).state == "aborted"
    await world.controller.stop()
    async with asyncio.timeout(5):
        await working


async def test_the_alert_of_a_refusal_is_over_when_the_next_candidate_passes() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = FAILED
    await world.until("refused")
    world.gates["heldout_tasks"].outcome = PASSED
    await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
    await world.until("running")
    events = [(alert.key, alert.cleared) for alert in world.bus.published(Alert)]
    assert events == [(f"rollout:{ROLE}:failed", False), (f"rollout:{ROLE}:failed", True)]


async def test_the_alert_that_a_person_has_to_decide_is_over_when_one_has() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    await world.operators.act(Act.APPROVE, Order("ada", "yes"))
    await world.until("running")
    events = [(alert.key, alert.cleared) for alert in world.bus.published(Alert)]
    assert events[:2] == [(f"rollout:{ROLE}:decision", False), (f"rollout:{ROLE}:decision", True)]
