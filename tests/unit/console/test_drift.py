"""What the pages say of the levels of rewards: each metric, and the change of it that holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.console.nats_state import drift_of
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.state import BASELINES, RewardDrift, WatchedMetric
from tests.support.fake_bus import fake_bus

AT = datetime(2026, 3, 2, 15, tzinfo=UTC)
RAISED = Alert(
    alert_id=named_id("one"), key="k", severity="warning", summary="it fell", source="reward_computer", at=AT
)


def watched(metric: str, alert: Alert | None) -> WatchedMetric:
    return WatchedMetric(metric=metric, trajectories=700, mean=0.5, evidence=0.1, alert=alert)


async def test_drift_names_the_changes_that_hold() -> None:
    bus = fake_bus()
    metrics = [watched("reward", RAISED), watched("judge", replace(RAISED, cleared=True)), watched("length", None)]
    drift = RewardDrift(role="support", function="standard-1", metrics=metrics)
    await Bucket(bus, BASELINES, RewardDrift).put("drift.support.standard-1", drift)
    shown = (await drift_of(bus)).metrics
    assert [(one.role, one.metric, one.alert, one.since) for one in shown] == [
        ("support", "reward", "it fell", AT),
        ("support", "judge", None, None),
        ("support", "length", None, None),
    ]


async def test_drift_that_cannot_be_read_hides_no_other() -> None:
    bus = fake_bus()
    anything: Bucket[Any] = Bucket(bus, BASELINES, object)
    await anything.put("drift.other.standard-1", {"v": 2})
    drift = RewardDrift(role="support", function="standard-1", metrics=[watched("reward", None)])
    await anything.put("drift.support.standard-1", drift)
    assert [one.role for one in (await drift_of(bus)).metrics] == ["support"]
