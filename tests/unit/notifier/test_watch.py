"""What services say at their health ports, as alerts: each thing once, when it has held, and over when it is."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.bus.testing import FakeClock
from ratchet.core.contract import Alert
from ratchet.core.service.health_ports import ServiceState
from ratchet.notifier.watch import Watch, conditions
from tests.support.fake_bus import alerts_on, fake_bus

FINE = [ServiceState("trajectory_collector"), ServiceState("reward_computer"), ServiceState("gateway")]
COLLECTOR, REWARD, GATEWAY = (state.name for state in FINE)


def failing(name: str, **reasons: str) -> ServiceState:
    return ServiceState(name, reasons=reasons)


class Watched:
    """A watch, the states that it sees, and the alerts that it made."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = fake_bus(self.clock)
        self.states: Sequence[ServiceState] = FINE
        self.alerts = alerts_on(self.bus, "notifier")
        self.watch = Watch(self.seen, self.alerts, self.clock.monotonic)

    async def seen(self) -> Sequence[ServiceState]:
        return self.states

    async def look(self, *states: ServiceState, after_s: float = 0.0) -> list[tuple[str, bool]]:
        """Key and end of the alerts of a look at these states, after so long."""
        self.clock.advance(after_s)
        self.states = states or FINE
        before = len(self.bus.published(Alert))
        await self.watch.look()
        return [(alert.key, alert.cleared) for alert in self.bus.published(Alert)[before:]]


async def test_a_dependency_that_several_services_miss_is_one_alert() -> None:
    watched = Watched()
    missing = failing(COLLECTOR, warehouse="no answer"), failing(REWARD, warehouse="no answer")
    assert await watched.look(*missing) == []
    assert await watched.look(*missing, after_s=60) == [("clickhouse", False)]
    assert watched.bus.published(Alert)[0].summary == (
        "ClickHouse is away (reward_computer, trajectory_collector): no answer"
    )
    assert await watched.look(failing(COLLECTOR, warehouse="no answer"), after_s=60) == []
    assert await watched.look(after_s=15) == [("clickhouse", True)]
    assert await watched.look(after_s=15) == []


async def test_what_mends_itself_soon_is_no_alert() -> None:
    watched = Watched()
    for _ in range(5):
        assert await watched.look(failing(COLLECTOR, objects="no answer")) == []
        assert await watched.look(after_s=59) == []


async def test_a_broker_away_for_five_minutes_is_one_alert_and_no_other() -> None:
    watched = Watched()
    ledger = failing(COLLECTOR, ledger="does not balance")
    assert await watched.look(ledger) == []
    assert await watched.look(ledger, after_s=120) == [(f"check:{COLLECTOR}:ledger", False)]
    away = failing(COLLECTOR, broker="away"), failing("canary_deployer", bus="away", leader="no deployer leads")
    assert await watched.look(*away, after_s=15) == []
    assert await watched.look(*away, after_s=299) == []
    assert await watched.look(*away, after_s=1) == [("broker", False)]
    assert sorted(await watched.look(after_s=15)) == [("broker", True), (f"check:{COLLECTOR}:ledger", True)]


async def test_a_service_that_is_away_is_an_alert_unless_it_is_not_needed() -> None:
    watched = Watched()
    states = (
        ServiceState("trainer_worker", away="refused"),
        ServiceState("engine_local", away="refused", is_needed=False),
    )
    assert await watched.look(*states) == []
    assert await watched.look(*states, after_s=120) == [("away:trainer_worker", False)]
    assert await watched.look(after_s=15) == [("away:trainer_worker", True)]


async def test_a_check_of_a_service_that_went_away_is_not_over() -> None:
    watched = Watched()
    await watched.look(failing(COLLECTOR, ledger="does not balance"))
    assert await watched.look(failing(COLLECTOR, ledger="does not balance"), after_s=120) == [
        (f"check:{COLLECTOR}:ledger", False)
    ]
    assert await watched.look(ServiceState(COLLECTOR, away="refused"), after_s=15) == []


async def test_a_watch_that_was_killed_clears_what_is_over() -> None:
    watched = Watched()
    await watched.look(ServiceState(COLLECTOR, notes={"spool": "3 events lost"}))
    watched.alerts = alerts_on(watched.bus, "notifier")
    watched.watch = Watch(watched.seen, watched.alerts, watched.clock.monotonic)
    assert await watched.look() == [("spool", True)]


def test_a_note_is_a_warning_and_a_reason_is_critical() -> None:
    state = ServiceState(GATEWAY, reasons={"routes": "unknown"}, notes={"canaries": "lapsed"})
    made = {condition.key: condition.severity for condition in conditions([state])}
    assert made == {"check:gateway:routes": "critical", "check:gateway:canaries": "warning"}
