"""The fakes of `ratchet.bus.testing` with the contracts of this repository."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.service.alerts import Alerts, held_alerts
from ratchet.core.service.contracts import load_contracts


def fake_broker(now: Callable[[], datetime] | None = None) -> FakeBroker:
    """A broker in memory."""
    return FakeBroker(load_contracts(), now)


def fake_bus(now: Callable[[], datetime] | None = None) -> FakeBus:
    """The only bus of a broker in memory."""
    return FakeBus(fake_broker(now))


def alerts_on(bus: FakeBus, source: str = "trajectory_collector") -> Alerts:
    """The alerts of a service on a fake of the bus."""
    return Alerts(source, bus.publish, bus.now, lambda: held_alerts(bus))
