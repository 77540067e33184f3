"""Metrics of self-learning: what the one that leads shows, and a standby does not."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from ratchet.analyst import metrics
from ratchet.analyst.app import Looking
from tests.support.analyst_world import ROLE, AnalystWorld, pattern


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"ratchet_analyst_{name}", labels)


async def test_a_standby_shows_no_patterns_and_no_look() -> None:
    looked = asyncio.Event()

    async def look() -> None:
        metrics.LOOKED.set_to_current_time()
        metrics.count([pattern()], [])
        looked.set()

    looking = Looking(3600.0, look)
    running = asyncio.create_task(looking.run())
    await looked.wait()
    assert shown("patterns", role=ROLE, state="open") == 1
    await looking.stop()
    await running
    assert shown("patterns", role=ROLE, state="open") is None
    assert shown("looked_timestamp_seconds") == 0


async def test_a_trajectory_counts_once_however_often_its_window_is_read() -> None:
    world, before = AnalystWorld(), shown("episodes_total", role=ROLE) or 0
    await world.runs().run(ROLE)
    assert shown("episodes_total", role=ROLE) == before + world.trajectories[1]
