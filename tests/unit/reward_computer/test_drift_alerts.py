"""Alerts on levels reach the broker once each, over restarts, repetitions and writes that fail."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.projection import Projection
from ratchet.bus.testing import FakeBroker, FakeBus, Killed
from ratchet.core.contract import Alert, Reward
from ratchet.core.contract.state import BASELINES, RewardDrift
from ratchet.reward_computer.app import projections
from ratchet.reward_computer.domain.drift import Drift
from ratchet.reward_computer.drift_alerts import DriftAlerts
from tests.support.drift_worlds import Planted, rewards
from tests.support.fake_bus import fake_broker
from tests.support.stored_values import check_buckets


@cache
def changed() -> list[Reward]:
    """Rewards of which the judge's score falls, so that the look at the 600th sees it."""
    return list(rewards(1, 610, Planted(550, {"judge": -0.4})))


async def folded(broker: FakeBroker) -> tuple[FakeBus, Projection[Drift]]:
    """A process that has folded all that there is."""
    bus = FakeBus(broker)
    *_, drift = projections(bus)
    running = asyncio.create_task(drift.run())
    await drift.wait_for((await bus.extent("RL_REWARDS")).last, 60)
    await drift.stop()
    await running
    return bus, drift


def alerts(bus: FakeBus) -> list[Alert]:
    return [alert for alert in bus.published(Alert) if alert.source == "reward_computer"]


async def test_alert_is_published_once_over_ticks_and_restarts() -> None:
    broker = fake_broker()
    FakeBus(broker).arrive(changed()[:-5])
    for _ in range(2):
        bus, drift = await folded(broker)
        watcher = DriftAlerts(bus, drift)
        await watcher.tick()
        await watcher.tick()
        (alert,) = alerts(bus)
        assert (alert.role, alert.severity, (alert.labels or {})["metric"]) == ("support", "warning", "judge")
        FakeBus(broker).arrive(changed()[-5:])


async def test_what_is_watched_stands_in_the_bucket_by_its_contract() -> None:
    broker = fake_broker()
    FakeBus(broker).arrive(changed())
    bus, drift = await folded(broker)
    await DriftAlerts(bus, drift).tick()
    assert await check_buckets(bus, BASELINES) == {"cursor.v1", "reward.drift.v1"}
    stored = await Bucket(bus, BASELINES, RewardDrift).get("drift.support.standard-1")
    assert stored is not None
    by_name = {metric.metric: metric for metric in stored.value.metrics}
    assert [by_name["judge"].alert] == alerts(bus)
    assert by_name["reward"].trajectories == len(changed())


async def test_alert_is_the_same_one_when_the_process_dies_before_it_is_noted() -> None:
    broker = fake_broker()
    FakeBus(broker).arrive(changed())
    bus, drift = await folded(broker)
    bus.faults.at = bus.faults.writes + 2
    with pytest.raises(Killed):
        await DriftAlerts(bus, drift).tick()
    assert len(alerts(bus)) == 1
    bus, drift = await folded(broker)
    await DriftAlerts(bus, drift).tick()
    assert len(alerts(bus)) == 1
