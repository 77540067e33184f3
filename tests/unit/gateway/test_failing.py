"""Calls that fail are a note of the gateway's while they are more than a tenth."""

from __future__ import annotations

from ratchet.bus.testing import FakeClock
from ratchet.gateway import metrics
from ratchet.gateway.metrics import FailingCalls


def count(status: int, number: int) -> None:
    metrics.CALLS.labels("support@1", "stable", str(status)).inc(number)


async def test_failing_calls_are_noted_until_they_are_few() -> None:
    clock = FakeClock()
    failing = FailingCalls(clock.monotonic)
    await failing.observe()
    assert await failing.check() is None
    for status, number in ((200, 60), (400, 20), (429, 5), (502, 15)):
        count(status, number)
    clock.advance(10)
    await failing.observe()
    assert await failing.check() == "15% of the calls of the last five minutes failed"
    count(200, 200)
    clock.advance(10)
    await failing.observe()
    assert await failing.check() is None
