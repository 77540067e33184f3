"""How often a caller may call, and that callers cost bounded memory."""

from __future__ import annotations

import pytest

from ratchet.gateway.domain.rate_limit import RateLimit


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_may_spend_a_minute_at_once_and_then_waits_for_the_next_token() -> None:
    clock = Clock()
    limit = RateLimit(4, clock)
    assert [limit.wait_s("a") for _ in range(4)] == [0.0] * 4
    assert limit.wait_s("a") == pytest.approx(15.0)
    clock.now += 14.0
    assert limit.wait_s("a") == pytest.approx(1.0)
    clock.now += 1.5
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a") > 0


def test_callers_do_not_share_a_bucket_and_a_quiet_minute_fills_it_only_once() -> None:
    clock = Clock()
    limit = RateLimit(1, clock)
    assert (limit.wait_s("a"), limit.wait_s("b")) == (0.0, 0.0)
    clock.now += 3600.0
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a") == pytest.approx(60.0)


def test_only_so_many_callers_are_remembered() -> None:
    limit = RateLimit(1, Clock(), callers=2)
    for caller in ("a", "b", "a", "c"):
        limit.wait_s(caller)
    assert len(limit) == 2
    assert limit.wait_s("a") > 0
    assert limit.wait_s("b") == 0.0
