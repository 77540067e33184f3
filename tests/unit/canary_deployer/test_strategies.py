"""Each strategy from the gates to its end, on a clock of our own: canary, blue_green, immediate, and `auto`."""

from __future__ import annotations

import pytest

from ratchet.canary_deployer.domain.operators import Order
from ratchet.core.contract import ModelDeployed, ModelRollout
from ratchet.core.errors import Rejected
from tests.support.canary_world import CanaryWorld, policy, quick_rules, served


async def soaking(**rules: float) -> CanaryWorld:
    """A blue_green rollout that has all traffic but the hold-back."""
    world = await CanaryWorld(quick_rules(**rules), strategy="blue_green").with_policies(1, 2)
    await world.until("soaking")
    return world


async def test_blue_green_moves_all_but_the_hold_back_and_keeps_the_previous() -> None:
    world = await soaking()
    route = await world.route()
    assert route.canary is not None
    assert (route.stable, route.canary.policy) == (served(1), served(2))
    assert [step.weight for step in route.canary.schedule] == [0.95]
    world.clock.advance(29)
    await world.controller.step()
    assert (await world.rollout()).state == "soaking"
    world.clock.advance(2)
    rollout = await world.until("promoted")
    assert rollout.reason == "soaked for 30 s without alarm"
    route = await world.route()
    assert (route.stable, route.previous, route.canary) == (served(2), served(1), None)
    assert {d.deployment_config.rollout_strategy for d in world.bus.published(ModelDeployed)} == {"blue_green"}


async def test_a_worse_blue_green_policy_is_rolled_back_within_its_soak() -> None:
    world = await soaking(soak_s=100_000.0)
    for _ in range(60):
        if not (await world.rollout()).active:
            break
        world.clock.advance(10)
        await world.play(60, stable_success=0.9, canary_success=0.1)
    rollout = await world.rollout()
    assert rollout.state == "rolled_back"
    assert "worse than the margin" in rollout.reason
    route = await world.route()
    assert (route.stable, route.canary) == (served(1), None)
    assert await world.stage_of(2) == "rolled_back"


async def test_an_equal_blue_green_policy_is_not_rolled_back() -> None:
    world = await soaking(soak_s=600.0)
    for _ in range(20):
        world.clock.advance(20)
        await world.play(40, stable_success=0.8, canary_success=0.8)
    assert (await world.rollout()).state == "soaking"
    world.clock.advance(300)
    await world.until("promoted")


async def test_immediate_promotes_as_soon_as_the_gates_are_passed() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.operators.start(policy(2), Order("ann", "now", override=True, strategy="immediate"))
    await world.until("promoted")
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["promote"]
    route = await world.route()
    assert (route.stable, route.previous) == (served(2), served(1))
    assert world.gates["probe"].asked == [policy(2).name]
    assert world.bus.published(ModelDeployed)[-1].metadata.approval_status == "emergency_override"


async def test_immediate_requires_an_override() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    with pytest.raises(Rejected, match="moves all traffic at once, unwatched: it takes override as well"):
        await world.operators.start(policy(2), Order("ann", "now", strategy="immediate"))


@pytest.mark.parametrize("strategy", ["blue_green", "auto"])
async def test_without_a_hold_back_a_candidate_goes_stage_by_stage(strategy: str) -> None:
    world = await CanaryWorld(quick_rules(soak_s=0.0), strategy=strategy).with_policies(1, 2)
    world.gates["heldout_tasks"].evidence = {"difference": 0.2}
    rollout = await world.until("running")
    assert (rollout.strategy, rollout.weight) == ("canary", 0.1)


@pytest.mark.parametrize("strategy", ["canary", "blue_green", "auto"])
async def test_a_failed_gate_refuses_the_candidate_under_every_strategy(strategy: str) -> None:
    world = await CanaryWorld(strategy=strategy).with_policies(1, 2)
    world.gates["probe"].outcome = "failed"
    await world.until("refused")
    assert (await world.route()).stable == served(1)


@pytest.mark.parametrize(
    ("difference", "state", "strategy"),
    [
        (-0.01, "refused", "canary"),
        (0.0, "running", "canary"),
        (0.06, "soaking", "blue_green"),
        (0.2, "soaking", "blue_green"),
    ],
)
async def test_auto_chooses_by_the_improvement(difference: float, state: str, strategy: str) -> None:
    world = await CanaryWorld(strategy="auto").with_policies(1, 2)
    world.gates["heldout_tasks"].evidence = {"difference": difference}
    rollout = await world.until(state)
    assert rollout.strategy == strategy


async def test_strategy_chosen_at_the_start_survives_a_restart_during_the_gates() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    order = Order("ann", "in a hurry", strategy="blue_green")
    await world.operators.start(policy(2), order)
    world.restart()
    rollout = await world.until("soaking")
    assert rollout.strategy == "blue_green"


async def test_an_approval_may_choose_the_strategy() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = "needs_approval"
    await world.until("awaiting_approval")
    await world.operators.start(policy(2), Order("ann", "fine by me", strategy="blue_green"))
    assert (await world.until("soaking")).strategy == "blue_green"
