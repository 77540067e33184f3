"""Publishes the alerts that the fold has raised or cleared, each once, and what is watched for people to read.

What was published stands beside it in the bucket: a process that dies in between publishes an alert again, under the
same id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.projection import Projection
from ratchet.core.contract.state import BASELINES, RewardDrift, WatchedMetric
from ratchet.reward_computer.domain.drift import Drift, Watch
from ratchet.reward_computer.domain.shifts import evidence

EVERY_S = 5.0


@dataclass(frozen=True)
class DriftAlerts:
    """One tick publishes what is new since the last."""

    bus: Bus
    drift: Projection[Drift]
    _done: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """By state: the sequence that was looked at last."""

    async def tick(self) -> None:
        """Raises `BusUnavailable`; the next tick goes on."""
        bucket = Bucket(self.bus, BASELINES, RewardDrift)
        for key, watches in self.drift.states().items():
            sequence = self.drift.sequence(key)
            if self._done.get(key) == sequence:
                continue
            entry = await bucket.get(f"drift.{key}")
            stored = entry.value.metrics if entry else []
            known = {metric.alert.alert_id for metric in stored if metric.alert}
            alerts = [watch.alert for watch in watches.values() if watch.alert]
            await self.bus.publish_all([alert for alert in alerts if alert.alert_id not in known])
            await bucket.put(f"drift.{key}", standing(key, watches))
            self._done[key] = sequence


def standing(key: str, watches: Drift) -> RewardDrift:
    """What is watched under a key of the fold, `<role>.<function>`."""
    role, _, function = key.partition(".")
    return RewardDrift(role=role, function=function, metrics=[_metric(name, watch) for name, watch in watches.items()])


def _metric(name: str, watch: Watch) -> WatchedMetric:
    oldest = watch.trackers[0] if watch.trackers else None
    return WatchedMetric(
        metric=name,
        trajectories=oldest.values if oldest else 0,
        mean=oldest.total / oldest.values if oldest else None,
        evidence=evidence(watch.trackers),
        alert=watch.alert,
    )
