"""How a program waits for its broker: for ever, for a while, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog
from nats.errors import NoServersError
from structlog.testing import capture_logs

from ratchet.bus.connection import BackgroundConnection, Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.errors import BusUnavailable, ConfigError
from ratchet.local.local_stack.ports import free_ports
from tests.support.fake_bus import fake_bus
from tests.support.running import running
from tests.support.shop import shop

CONTRACTS = shop()


@pytest.fixture
def absent() -> str:
    """An address on which no broker listens."""
    (port,) = free_ports(1)
    return f"nats://127.0.0.1:{port}"


async def attempts(absent: str, count: int, patience: Callable[[Callable[[], BusSettings]], Patience]) -> int:
    """Let a bus try to connect `count` times; returns the number of warnings."""
    tried, enough = 0, asyncio.Event()

    def address() -> BusSettings:
        nonlocal tried
        tried += 1
        if tried > count:
            enough.set()
        return BusSettings(absent)

    structlog.reset_defaults()  # a client or a command of an earlier test may have raised the level
    with capture_logs() as logs:
        settings = BusSettings("nats://127.0.0.1:1")
        connecting = asyncio.create_task(
            Bus.connect(settings, name="test", contracts=CONTRACTS, patience=patience(address))
        )
        await enough.wait()
        await end(connecting)
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert all(line["url"] == absent for line in warnings)
    return len(warnings)


async def test_service_warns_of_every_attempt_and_looks_for_its_broker_first(absent: str) -> None:
    assert await attempts(absent, 3, lambda at: Patience(settings=at, first_pause_s=0.01, longest_pause_s=0.02)) == 3


async def test_a_library_in_another_program_warns_once(absent: str) -> None:
    quiet = await attempts(absent, 3, lambda at: Patience(settings=at, first_pause_s=0.01, quiet=True))
    assert quiet == 1


async def test_a_command_gives_up_at_its_deadline(absent: str) -> None:
    settings, patience = BusSettings(absent.replace("//", "//user:secret@")), Patience(deadline_s=0.2)
    with pytest.raises(BusUnavailable, match="the broker does not answer at nats://127") as raised:
        await Bus.connect(settings, name="test", contracts=CONTRACTS, patience=patience)
    assert "secret" not in str(raised.value)


async def test_deadline_holds_where_the_connection_drops_its_cancel(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nats-py does when a broker has just refused it; and a deadline cancels once."""
    waits = asyncio.Event()

    async def reach(*_: object, **__: object) -> None:
        try:
            await waits.wait()
        except asyncio.CancelledError:
            waits.set()
        raise NoServersError

    monkeypatch.setattr(Bus, "reach", reach)
    patience = Patience(deadline_s=0.1, first_pause_s=0.01)
    async with asyncio.timeout(5):
        with pytest.raises(BusUnavailable, match="does not answer"):
            await Bus.connect(BusSettings(absent), name="test", contracts=CONTRACTS, patience=patience)


async def test_a_program_serves_before_its_broker_is_there() -> None:
    here, bus = asyncio.Event(), fake_bus()

    async def connect() -> Bus:
        await here.wait()
        return bus

    connection = BackgroundConnection(connect)
    async with running(connection):
        waiting = asyncio.create_task(connection.bus())
        assert await connection.check() == "the broker is not connected"
        assert connection.connected is None
        here.set()
        assert await waiting is bus
        assert connection.connected is bus
        assert await connection.check() is None
        bus.broker.go_away()
        assert await connection.check() == "the broker is not connected"


async def test_a_connection_that_was_never_made_stops_at_once() -> None:
    async def connect() -> Bus:
        await asyncio.Event().wait()
        raise AssertionError("it never is")

    async with running(connection := BackgroundConnection(connect)):
        assert connection.connected is None


async def test_who_waits_for_a_connection_that_will_never_be_is_not_left_waiting() -> None:
    async def connect() -> Bus:
        await asyncio.Event().wait()
        raise AssertionError("it never is")

    async with running(connection := BackgroundConnection(connect)):
        waiting = asyncio.create_task(connection.bus())
    with pytest.raises(BusUnavailable, match="stopped before the broker was connected"):
        await waiting


async def test_connection_that_fails_for_good_ends_its_component_and_waiters() -> None:
    async def connect() -> Bus:
        raise ConfigError("the seed file is empty")

    connection = BackgroundConnection(connect)
    waiting = asyncio.create_task(connection.bus())
    with pytest.raises(ConfigError, match="seed file"):
        await connection.run()
    with pytest.raises(BusUnavailable):
        await waiting
    assert connection.connected is None


async def test_cancelled_component_closes_the_connection_that_it_holds_or_awaits() -> None:
    closed: list[str] = []

    class Closing(FakeBus):
        async def close(self) -> None:
            closed.append("yes")

    async def connect() -> Bus:
        return Closing(FakeBroker(CONTRACTS))

    connection = BackgroundConnection(connect)
    task = asyncio.create_task(connection.run())
    await connection.bus()
    await end(task)
    assert closed == ["yes"]


async def test_a_connect_that_raises_at_once_leaves_no_caller_waiting() -> None:
    def connect() -> Awaitable[Bus]:
        raise ConfigError("no seed file")

    connection = BackgroundConnection(connect)
    with pytest.raises(ConfigError):
        await connection.run()
    with pytest.raises(BusUnavailable):
        await connection.bus()
