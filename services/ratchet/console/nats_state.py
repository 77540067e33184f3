"""What the broker says to the pages: routes, alerts that hold, the levels of rewards, and changes as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec
import structlog
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.tasks import Lasting
from ratchet.console.domain.hints import hint_of, trajectory_hint
from ratchet.core.contract import DEFAULT_ROLE, Alert, Trajectory
from ratchet.core.contract.http.console import AlertsOut, DriftOut, HintOut, WatchedOut
from ratchet.core.contract.notifications import NOTIFICATIONS, Receiver
from ratchet.core.contract.state import BASELINES, POLICIES, RewardDrift, Route, WatchedMetric
from ratchet.core.errors import BusUnavailable, ContractError
from ratchet.core.rules.alert_book import RECENTLY
from ratchet.core.rules.notifications import alerts_out
from ratchet.core.service.alerts import AlertsFollower

log = structlog.get_logger()

WAIT_S = 5.0
AGAIN_S = 1.0
"""Pause before the stream is read again that could not be read."""


class Routes(Lasting):
    """Each role's route, as this process last read it; an entry that cannot be read is left out."""

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self._bus = bus
        self._routes: dict[str, Route] = {}

    def current(self) -> Mapping[str, Route]:
        """By role."""
        return self._routes

    async def _work(self) -> None:
        bucket = Bucket(self._bus, POLICIES, msgspec.Raw)
        async for changes in bucket.watch(lambda key: "." not in key):
            for role, entry in changes:
                self._routes.pop(role, None)
                try:
                    if entry is not None:
                        self._routes[role] = decode(entry.value, Route)
                except msgspec.DecodeError as error:
                    log.warning("route unreadable", role=role, reason=str(error))


class Alerts:
    """The alerts that hold, as they were read to the end of their stream."""

    def __init__(self, bus: Bus) -> None:
        async def connected() -> Bus:
            return bus

        self._bus = bus
        self._followed = AlertsFollower(connected, RECENTLY)

    async def current(self) -> Sequence[Alert]:
        """Those that hold, oldest first. Raises `BusUnavailable` while their stream cannot be read."""
        if not self._bus.is_connected:
            raise BusUnavailable("the broker does not answer")
        if self._followed.unread is not None:
            raise BusUnavailable(self._followed.unread)
        return self._followed.book.holding(self._bus.now())

    async def with_receivers(self) -> AlertsOut:
        """Those that hold, and what was sent to whom. Raises `BusUnavailable`."""
        alerts, now = await self.current(), self._bus.now()
        receivers = await Bucket(self._bus, NOTIFICATIONS, Receiver).items()
        return alerts_out(alerts, [entry.value for entry in receivers.values()], now)

    async def run(self) -> None:
        """Follow the stream until stopped."""
        await self._followed.run()

    async def stop(self) -> None:
        """Return from `run`."""
        await self._followed.stop()


async def drift_of(bus: Bus) -> DriftOut:
    """What is watched in the rewards of all roles, as the reward computer last wrote it. Raises `BusUnavailable`."""
    entries = await Bucket(bus, BASELINES, RewardDrift).below("drift")
    read = [entry.value for entry in entries.values() if isinstance(entry, Entry)]
    return DriftOut(metrics=[_watched(drift, metric) for drift in read for metric in drift.metrics])


def _watched(drift: RewardDrift, metric: WatchedMetric) -> WatchedOut:
    holds = metric.alert if metric.alert is not None and not metric.alert.cleared else None
    return WatchedOut(
        role=drift.role,
        function=drift.function,
        metric=metric.metric,
        trajectories=metric.trajectories,
        mean=metric.mean,
        evidence=metric.evidence,
        alert=holds.summary if holds else None,
        since=holds.at if holds else None,
    )


STREAMS = ("RL_TRAINING", "RL_DEPLOYMENTS", "RL_ALERTS", "RL_REWARDS", "RL_FEEDBACK")
"""Read with their bodies, which are small."""
TRAJECTORIES = "RL_TRAJECTORIES"
"""Read without bodies: a trajectory may have megabytes."""


class NatsHints:
    """Reads the streams from now on. What is missed while the broker is away is no loss: pages ask again."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def follow(self, take: Callable[[HintOut], None]) -> None:
        """Hand on every hint; goes on until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in (*STREAMS, TRAJECTORIES):
                group.create_task(self._follow(stream, take))

    async def _follow(self, stream: str, take: Callable[[HintOut], None]) -> None:
        since = self._bus.now()
        while True:
            reader = OrderedReader(self._bus, stream, start=since, headers_only=stream == TRAJECTORIES)
            try:
                await reader.open()
                while True:
                    for message in await reader.next(WAIT_S):
                        since = max(since, message.metadata.timestamp)
                        hint = self._hint(message, stream)
                        if hint is not None:
                            take(hint)
            except BusUnavailable as error:
                log.debug("hints wait for the broker", stream=stream, reason=str(error))
            finally:
                await reader.close()
            await asyncio.sleep(AGAIN_S)

    def _hint(self, message: Msg, stream: str) -> HintOut | None:
        at: datetime = message.metadata.timestamp
        if stream == TRAJECTORIES:
            return trajectory_hint(message.subject.removeprefix(Trajectory.TOPIC).lstrip(".") or DEFAULT_ROLE, at)
        try:
            return hint_of(self._bus.read(message)[0].message, at)
        except ContractError:  # its consumers make it a dead letter
            return None
