"""A broker that answers questions and takes no writes is not to be relied on."""

from __future__ import annotations

from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.durable_writes import UNANSWERED, DurableWrites


def refusing(bus: FakeBus) -> None:
    """Its next write fails."""
    bus.unavailable_at(bus.faults.writes + 1)
    assert bus.faults.error is BusUnavailable


async def test_writes_that_stay_unanswered_make_the_broker_unfit() -> None:
    bus = FakeBus(FakeBroker(load_contracts()))
    writes, answers = DurableWrites(bus), list[str | None]()
    for _ in range(UNANSWERED):
        refusing(bus)
        answers.append(await writes.check())
    assert answers[:-1] == [None] * (UNANSWERED - 1)
    assert str(answers[-1]).startswith("takes no writes: ")
    assert await writes.check() is None


async def test_writes_count_from_0_again_when_the_broker_was_away() -> None:
    bus = FakeBus(FakeBroker(load_contracts()))
    writes = DurableWrites(bus)
    for _ in range(UNANSWERED - 1):
        refusing(bus)
        assert await writes.check() is None
    bus.broker.go_away()
    assert await writes.check() is None
    bus.broker.come_back()
    refusing(bus)
    assert await writes.check() is None
