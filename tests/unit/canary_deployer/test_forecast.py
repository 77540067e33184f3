"""A rollout is published with a forecast of its duration; past a bound an operator decides."""

from __future__ import annotations

import pytest

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.domain.estimates import forecast, takes_too_long
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.settings import Settings
from ratchet.core.contract import Alert, ModelRollout
from ratchet.core.contract.state import POLICIES, PolicyVersion
from tests.support.canary_world import ROLE, CanaryWorld, policy, served

DAY_S = 86400.0
RULES = Settings().rules()


@pytest.mark.parametrize(
    ("per_day", "least", "most"),
    [(20, 48, 300), (300, 3, 20), (1000, 1, 6)],
)
def test_rule_of_thumb_lies_within_simulated_rollouts_of_an_equal_policy(
    per_day: int, least: float, most: float
) -> None:
    expected = forecast(per_day, DAY_S, RULES)
    assert expected is not None
    assert least < expected.days < most


def test_much_traffic_takes_the_shortest_times_of_the_stages() -> None:
    expected = forecast(10_000_000, DAY_S, RULES)
    assert expected is not None
    assert expected.days * DAY_S == pytest.approx(3600 + 3600 + 7200 + 3600)


def test_too_few_starts_give_no_forecast() -> None:
    assert forecast(4, DAY_S, RULES) is None
    assert not takes_too_long(None, RULES)


def test_one_sentence_has_the_figures_and_the_bound() -> None:
    expected = forecast(20, DAY_S, RULES)
    assert expected is not None
    assert "at 20 trajectories of 20 subjects a day a policy equal to stable takes about" in expected.sentence(RULES)
    assert expected.sentence(RULES).endswith("the bound is 14")


async def test_the_start_is_published_with_the_forecast() -> None:
    world = CanaryWorld(RULES)
    world.traffic.per_day = 1000
    await world.with_policies(1, 2)
    await world.until("running")
    start = world.bus.published(ModelRollout)[-1]
    assert start.verdict == "start"
    assert start.evidence["forecast"]["trajectories_per_day"] == 1000
    assert 1 < start.evidence["forecast"]["expected_days"] < 6


async def test_past_the_bound_an_operator_is_asked_at_once_and_may_start_it() -> None:
    world = CanaryWorld(RULES)
    world.traffic.per_day = 20
    await world.with_policies(1, 2)
    rollout = await world.until("awaiting_approval")
    assert "at 20 trajectories of 20 subjects a day" in rollout.reason
    assert "at 20 trajectories of 20 subjects a day" in world.bus.published(Alert)[-1].summary
    assert (await world.route()).canary is None
    await world.operators.act(Act.APPROVE, Order("ann", "we have time"))
    rollout = await world.rollout()
    assert rollout.state == "running"
    assert rollout.forecast is not None
    assert rollout.forecast.days > 14


async def test_a_rollout_that_takes_too_long_is_superseded_by_a_newer_candidate() -> None:
    world = CanaryWorld(RULES)
    world.traffic.per_day = 20
    await world.with_policies(1, 2)
    await world.until("awaiting_approval")
    await world.operators.act(Act.APPROVE, Order("ann", "we have time"))
    await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
    world.controller.wake()
    await world.controller.step()
    rollout = await world.rollout()
    assert rollout.reason == f"superseded by {served(3).name} because it would have taken too long"
    assert await world.stage_of(2) == "superseded"
    assert (await world.route()).canary is None
