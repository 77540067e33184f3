"""Settings of several workers: what is set for the gateway is shared among them, whatever their number."""

from __future__ import annotations

import pytest

from ratchet.core.service.seat import Seat
from ratchet.gateway.settings import Settings

TOTALS = (
    "cache_bytes",
    "connections",
    "connections_per_address",
    "conversation_bytes",
    "arms_bytes",
    "identity_bytes",
    "recording_bytes",
    "queue_limit",
    "spool_bytes",
)


@pytest.mark.parametrize("workers", [2, 3, 64])
def test_shares_add_up_to_what_is_set(workers: int) -> None:
    settings = Settings(cache_bytes=1_000_001, connections=1000, connections_per_address=10, queue_limit=100)
    share = settings.share_of(Seat(number=1, workers=workers, port=4711))
    for name in TOTALS:
        total, part = getattr(settings, name), getattr(share, name)
        assert total <= part * workers < total + workers, name
    assert share.port == 4711


def test_what_no_worker_may_exceed_alone_is_not_shared() -> None:
    settings = Settings(bodies_bytes=100, body_limit=80, requests_per_minute=7)
    share = settings.share_of(Seat(number=2, workers=2, port=1))
    assert (share.bodies_bytes, share.body_limit, share.requests_per_minute, share.recorders) == (80, 80, 7, 1)


def test_no_bound_stays_no_bound() -> None:
    share = Settings().share_of(Seat(number=1, workers=2, port=1))
    assert (share.connections, share.connections_per_address, share.cache_bytes) == (0, 0, 0)
