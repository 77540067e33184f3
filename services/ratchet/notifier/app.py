"""Composition root of the notifier.

health ports ─── Watch ────────┬─ Alerts ──┬── RL_ALERTS ── AlertsFollower ── AlertBook
/alertmanager ── alertmanager ─┘           └─ (while the broker is away) ───────┘ │
ClickHouse, bucket `jobs` ── Reports, EndedJobs ──────────────────────────────── │
bucket `notifications`, a file ── ReceiverStore ── Delivery, one for each receiver ── transports: webhook, apprise
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import BackgroundConnection, Bus
from ratchet.core.contract import Alert
from ratchet.core.contract.notifications import Receiver
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.alert_book import AlertBook
from ratchet.core.service.alerts import Alerts, AlertsFollower
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.health_ports import HealthPorts, ServiceState
from ratchet.core.service.runtime import App, Periodic
from ratchet.notifier.alertmanager import PATH, alertmanager_app
from ratchet.notifier.delivery import FAILING, Delivery, Sources
from ratchet.notifier.domain.deliveries import FIRST_PAUSE, SPACING
from ratchet.notifier.kv_receivers import ReceiverStore, holder_of
from ratchet.notifier.reports import EndedJobs, Reports
from ratchet.notifier.settings import ReceiverSettings, Settings, verify
from ratchet.notifier.transports import transport_of
from ratchet.notifier.watch import LOOK_S, Watch

NAME = "notifier"
ANSWER_S = 5.0
"""A service gives each of its checks two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations that no installation has had to change; tests pass shorter ones."""

    look_s: float = LOOK_S
    """Between two looks at the services."""
    spacing: timedelta = SPACING
    """Between two notifications of a receiver."""
    first_pause: timedelta = FIRST_PAUSE
    """After a first attempt that failed."""
    now: Callable[[], datetime] = utc_now
    """The clock on the wall."""
    monotonic: Callable[[], float] = time.monotonic
    """The clock by which something holds for so long."""


TIMING = Timing()


@asynccontextmanager
async def build(settings: Settings, timing: Timing = TIMING) -> AsyncIterator[App]:
    """Put everything together. It begins without a broker: then people hear of that."""
    verify(settings, {})
    async with HealthPorts(settings.health_urls, answer_s=ANSWER_S) as ports:
        yield Notifier(settings, ports, timing).app()


class Notifier:
    """The parts of one notifier."""

    def __init__(self, settings: Settings, ports: HealthPorts, timing: Timing) -> None:
        shared = settings.shared
        self._timing = timing
        self._ports = ports
        self._broker = BackgroundConnection(
            lambda: Bus.connect(shared.bus, name=NAME, contracts=load_contracts(), echo=False)
        )
        self._followed = AlertsFollower(self._broker.bus, None, self._changed)
        self._alerts = Alerts(NAME, self._publish, utc_now, self._held, self._notice)
        key = settings.alertmanager_key
        self._others = {PATH: alertmanager_app(key.get_secret_value(), self._alerts)} if key is not None else {}
        self._ended = EndedJobs(self._broker.bus, timing.now)
        reports = Reports(shared, self._followed, self._ended)
        self._sources = Sources(self._book, self._alerts, reports, timing.now)
        folder = shared.data_dir / NAME
        holder = holder_of(folder)
        self._stores: list[ReceiverStore] = []
        self._deliveries: list[Delivery] = []
        for receiver in settings.receivers:
            store = self._store_of(receiver, folder, holder)
            self._stores.append(store)
            self._deliveries.append(self._delivery_of(receiver, store))

    def app(self) -> App:
        """What runs, and what it says of itself."""
        watch = Watch(self._states, self._alerts, self._timing.monotonic)
        return App(
            NAME,
            [
                self._broker,
                self._followed,
                self._ended,
                *self._deliveries,
                Periodic(self._timing.look_s, watch.look, "watch"),
            ],
            {"alerts": self._check_alerts},
            notes={"broker": self._broker.check, "receivers": self._check_receivers},
            others=self._others,
        )

    def _store_of(self, receiver: ReceiverSettings, folder: Path, holder: str) -> ReceiverStore:
        blank = Receiver(
            name=receiver.name,
            kind=receiver.kind,
            severity=receiver.severity,
            roles=[*receiver.roles],
            at=utc_now(),
        )
        return ReceiverStore(blank, folder, holder, lambda: self._broker.connected)

    def _delivery_of(self, receiver: ReceiverSettings, store: ReceiverStore) -> Delivery:
        transport = transport_of(receiver, utc_now)
        rules = replace(receiver.rules, spacing=self._timing.spacing, first_pause=self._timing.first_pause)
        return Delivery(rules, store, transport, self._sources)

    def _book(self) -> AlertBook | None:
        """What is known of alerts: while the broker is away what was, and what this process noticed since."""
        unread = self._followed.unread is not None and self._broker.connected is not None
        return None if unread else self._followed.book

    def _changed(self) -> None:
        self._notice(*self._alerts.pending)

    def _notice(self, *alerts: Alert) -> None:
        for alert in alerts:
            self._followed.book.add(alert)
        for delivery in self._deliveries:
            delivery.wake()

    async def _publish(self, alert: Alert) -> None:
        """Own alerts are delivered also while no broker takes them."""
        self._notice(alert)
        bus = self._broker.connected
        if bus is None:
            raise BusUnavailable("the broker is not connected")
        await bus.publish(alert)

    async def _held(self) -> Sequence[Alert]:
        """The alerts that hold, also those that only a receiver knows: the broker was away when they were raised."""
        if self._followed.unread is not None:
            raise BusUnavailable(self._followed.unread)
        known = {alert.key: alert for store in self._stores for alert in store.firing(NAME)}
        read = {noticed.alert.key: noticed.alert for noticed in self._followed.book}
        return [alert for alert in ({**known, **read}).values() if not alert.cleared]

    async def _states(self) -> list[ServiceState]:
        states, broker = await asyncio.gather(self._ports.states(), self._broker.check())
        own = ServiceState(NAME, {} if broker is None else {"broker": broker})
        return [own, *states]

    async def _check_alerts(self) -> str | None:
        return self._followed.unread

    async def _check_receivers(self) -> str | None:
        failing = [store.name for store in self._stores if store.failures >= FAILING]
        return f"not taken by {', '.join(failing)}" if failing else None
