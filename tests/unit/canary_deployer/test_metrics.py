"""The names, types and labels that operators know."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import REGISTRY

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.rollout import FAILED, Rollout, State
from ratchet.canary_deployer.domain.summary import e_values
from ratchet.core.contract.state import ROLLOUTS
from tests.support.canary_world import CanaryWorld, FakeGate, policy, quick_rules, start_of, turn_of


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_a_rollout_shows_traffic_reward_and_errors_of_both_policies() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].evidence = {"candidate_score": 0.75, "stable_score": 0.5}
    canaries = value("agent_rl_model_deployments_total", status="canary") or 0.0
    await world.until("running")
    stable, canary = policy(1).name, policy(2).name
    errors = value("agent_rl_model_errors_total", model_version=canary) or 0.0
    one = "0190a4f0-0000-7000-8000-000000000001"
    world.bus.arrive([start_of(one, "canary", 2, 0.1, await world.route())])
    world.bus.arrive([turn_of(one, "canary", 2, 0.1, error="engine away")])
    await world.play(100, 1.0, 1.0, costs_usd=(0.01, 0.02))
    assert value("agent_rl_model_deployments_total", status="canary") == canaries + 1
    assert value("agent_rl_model_traffic_percentage", model_version=canary) == 10
    assert value("agent_rl_model_traffic_percentage", model_version=stable) == 90
    assert round(value("agent_rl_model_reward_mean", model_version=stable) or 0, 6) == 0.85
    assert value("agent_rl_model_cost_usd", model_version=stable) == pytest.approx(0.01)
    assert (value("agent_rl_model_error_rate", model_version=canary) or 0) > 0
    assert value("agent_rl_model_errors_total", model_version=canary) == errors + 1
    assert value("agent_rl_model_benchmark_score", model_version=canary, task_type="heldout") == 0.75
    for test in ("rollback", "promotion", "suspension", "first_call", "safety", "sample_ratio"):
        assert value("ratchet_rollout_e_value", role="support", test=test) is not None


async def test_a_suspended_canary_is_shown_until_it_is_decided() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    running = await world.until("running")
    for state, shown in ((State.SUSPENDED, 1), (State.WITHDRAWN, 0)):
        rollout = msgspec.structs.replace(running, state=state)
        metrics.show_rollout(rollout, e_values(rollout.statistics, quick_rules()))
        assert value("ratchet_rollout_suspended", role="support") == shown


async def test_differences_are_shown_until_the_next_rollout() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(100, 0.9, 0.2, complaints=(0.0, 1.0))
    assert value("ratchet_rollout_stage", role="support") == 1
    low, mean, high = (
        value("ratchet_rollout_difference", role="support", measure="failure", bound=bound) or 0.0
        for bound in ("low", "mean", "high")
    )
    assert low < mean < high
    assert value("agent_rl_model_complaint_rate", model_version=policy(2).name) == 1
    assert await world.play_to_the_end(stable=0.9, canary=0.2) == "rolled_back"
    assert value("ratchet_rollout_stage", role="support") == 0
    assert (value("ratchet_rollout_difference", role="support", measure="failure", bound="mean") or 0.0) > mean
    await world.register(3)
    await world.until("running")
    assert value("ratchet_rollout_difference", role="support", measure="failure", bound="mean") is None


async def test_rollout_is_shown_by_the_deployer_that_leads_alone() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"] = FakeGate("heldout_tasks", FAILED, {"candidate_score": 0.25})
    await world.until("refused")
    metrics.stop_showing()
    rollouts = Bucket(world.bus, ROLLOUTS, Rollout)
    controllers = Controllers(lambda _: world.new_controller(), world.policies, rollouts, world.lead)
    term = asyncio.create_task(controllers.run())

    async def shown() -> bool:
        return value("agent_rl_model_traffic_percentage", model_version=policy(1).name) == 100

    await eventually(shown)
    assert value("agent_rl_model_benchmark_score", model_version=policy(2).name, task_type="heldout") == 0.25
    world.lead.leading = False
    await controllers.stop()
    await term
    assert [sample for gauge in metrics.STANDING for family in gauge.collect() for sample in family.samples] == []


async def test_decisions_are_counted_by_who_took_them() -> None:
    labels = {"role": "support", "verdict": "roll_back", "actor": "deployer"}
    before = value("ratchet_rollout_decisions_total", **labels) or 0.0
    gates = value("ratchet_gate_results_total", role="support", gate="heldout_tasks", outcome="passed") or 0.0
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    assert await world.play_to_the_end(stable=0.9, canary=0.2) == "rolled_back"
    assert value("ratchet_rollout_decisions_total", **labels) == before + 1
    assert (value("ratchet_rollout_decided_timestamp_seconds", **labels) or 0) > 0
    assert (value("ratchet_gate_results_total", role="support", gate="heldout_tasks", outcome="passed") or 0) > gates
