"""What the demo counts on the real ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from ratchet.core.contract import Message, Trajectory, encode
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.local.demo.clickhouse_facts import Facts as DemoFacts
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import received
from tests.support.running import prepared_warehouse
from tests.support.training import reward


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def played(name: str, arm: str | None) -> Trajectory:
    """A ticket that agents played with an arm's policy; without one a clerk logged it."""
    metadata = msgspec.structs.replace(trajectory().metadata, source="assembled" if arm else "client")
    claim = PolicyClaim(role="support", version=1, digest="0" * 64, arm=arm, weight=0.0) if arm else None
    return trajectory(name, metadata=metadata, policy=claim)


async def store(warehouse: Warehouse, *messages: Message) -> None:
    table = TABLES[messages[0].TOPIC]
    rows: list[Row] = [
        row_of(table, received(one, number), "made/1", AT) | {"body": encode(one).decode()}
        for number, one in enumerate(messages, 1)
    ]
    await Facts(warehouse).insert(table, rows, again=True)


async def test_silent_held_out_tickets_are_none_that_clerks_logged(
    warehouse: Warehouse,
) -> None:
    live = [played("logged", None), played("stable", "stable"), played("canary", "canary"), played("mixed", "mixed")]
    held_out = played("of the gate", "pinned")
    facts = DemoFacts(warehouse, "support")
    await store(warehouse, *live, held_out)
    await store(warehouse, *(reward(name, 1.0) for name in (*live[1:], held_out)))
    assert await facts.rewarded() == 3  # of the four that are due, though four rewards are stored
    await store(warehouse, reward(live[0], 1.0))
    assert await facts.rewarded() == 4
    traffic = await facts.traffic()
    assert (traffic.trajectories, traffic.rewards) == (4, 4)
    assert traffic.recent is not None
    assert traffic.recent.trials == 3
