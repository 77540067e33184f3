"""The horizon is measured on stable's history when a rollout starts, and holds until it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.canary_deployer.domain.estimates import FEWEST_OUTCOMES, forecast, measured_horizon, quantile
from ratchet.canary_deployer.settings import Settings
from ratchet.core.contract import ModelRollout
from ratchet.core.errors import Unavailable
from tests.support.canary_world import CanaryWorld, quick_rules

DAY_S = 86400.0
RULES = replace(Settings().rules(), horizon_max_s=7200)


@pytest.mark.parametrize(("share", "value"), [(0.01, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_the_quantile_is_the_value_that_the_share_does_not_exceed(share: float, value: float) -> None:
    assert quantile([float(n) for n in range(100, 0, -1)], share) == value


def test_the_horizon_leaves_head_room_above_the_slowest_one_in_a_hundred() -> None:
    frozen = measured_horizon([*[60.0] * 980, *[1200.0] * 20], None, RULES)
    assert (frozen.seconds, frozen.quantile_s, frozen.outcomes) == (1800.0, 1200.0, 1000)
    assert frozen.basis == "99% of 1000 outcomes of stable were known within 1200 s"


@pytest.mark.parametrize(("took_s", "seconds"), [(1.0, 600.0), (7000.0, 7200.0)])
def test_the_horizon_stays_between_its_bounds(took_s: float, seconds: float) -> None:
    assert measured_horizon([took_s] * 1000, None, RULES).seconds == seconds


def test_horizon_is_short_under_much_traffic_and_never_below_the_setting() -> None:
    busy, busier = forecast(10 * int(DAY_S), DAY_S, RULES), forecast(100 * int(DAY_S), DAY_S, RULES)
    assert measured_horizon([5000.0] * 1000, busy, RULES).seconds == 3600.0
    assert measured_horizon([5000.0] * 1000, busier, RULES).seconds == 1800.0


def test_with_too_little_history_the_setting_holds_and_basis_gives_reason() -> None:
    frozen = measured_horizon([5.0] * (FEWEST_OUTCOMES - 1), None, RULES)
    assert (frozen.seconds, frozen.outcomes) == (1800.0, 0)
    assert frozen.basis == "the setting: 99 of 100 outcomes of stable are known of trajectories older than 2 h"


def test_a_setting_outside_its_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="less than or equal to 21600"):
        Settings(horizon_s=21601)
    assert Settings(horizon_s=60).rules().horizon_min_s == 60


async def missing(world: CanaryWorld) -> int:
    """Outcomes that are given up on both arms."""
    rollout = await world.controller.current()
    assert rollout is not None
    return rollout.statistics.stable.missing + rollout.statistics.canary.missing


async def test_horizon_is_frozen_when_rollout_starts_and_next_leader_reads_it() -> None:
    world = CanaryWorld(quick_rules())
    world.history.took_s = [800.0] * 1000
    await world.with_policies(1, 2)
    started = await world.until("running")
    assert started.horizon is not None
    assert started.horizon.seconds == 1200.0
    assert world.bus.published(ModelRollout)[-1].evidence["horizon"]["seconds"] == 1200.0
    world.history.took_s = [100.0] * 1000
    world.rules = quick_rules(horizon_s=50.0)
    world.restart()
    await world.play(20, 0.5, 0.5)
    assert (await world.rollout()).horizon == started.horizon


async def test_the_frozen_horizon_decides_when_an_outcome_is_missing() -> None:
    world = CanaryWorld(quick_rules(horizon_s=300.0))
    world.history.took_s = [800.0] * 1000
    await world.with_policies(1, 2)
    await world.until("running")
    await world.play(40, 0.5, 0.5, rewarded=False)
    world.clock.advance(1199)
    await world.play(0, 0.5, 0.5)
    assert await missing(world) == 0
    world.clock.advance(2)
    await world.play(0, 0.5, 0.5)
    assert await missing(world) == 40


async def test_rollout_without_a_coordinator_starts_with_the_setting() -> None:
    world = CanaryWorld(quick_rules(horizon_s=300.0))
    world.history.fault = Unavailable("the coordinator does not answer")
    await world.with_policies(1, 2)
    horizon = (await world.until("running")).horizon
    assert horizon is not None
    assert (horizon.seconds, horizon.basis) == (300.0, "the setting: the coordinator does not answer")


async def test_a_role_without_outcomes_keeps_the_setting() -> None:
    world = CanaryWorld(quick_rules(roles_without_outcomes=frozenset({"support"})))
    world.history.took_s = [800.0] * 1000
    await world.with_policies(1, 2)
    horizon = (await world.until("running")).horizon
    assert horizon is not None
    assert (horizon.seconds, horizon.basis) == (300.0, "the setting: the role has no outcomes")
