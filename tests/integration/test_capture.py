"""What the history says of capture, on the real ClickHouse: replays and duplicates count nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.core.contract import PolicyClaim, Turn, encode, named_id
from ratchet.core.contract.turn import Trainable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.capture import of_trajectory, report
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.messages import turn
from tests.support.rewards import received
from tests.support.running import prepared_warehouse

AT = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
SINCE = AT - timedelta(hours=2)


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def call(name: str, trajectory: str, reason: str | None = None, arm: str = "stable", **members: Any) -> Turn:
    """A call of the role support in a trajectory, and why no learner may use it."""
    values: dict[str, Any] = {
        "turn_id": named_id("turn", name),
        "trajectory_id": named_id("trajectory", trajectory),
        "timestamp": AT,
        "policy": claim(1, arm),
        "trainable": Trainable(ok=reason is None, reason=reason),
    }
    return turn(name, **values | members)


def claim(version: int, arm: str = "stable") -> PolicyClaim:
    return PolicyClaim(role="support", version=version, digest="a" * 64, arm=arm, weight=0.0)


async def store(warehouse: Warehouse, *turns: Turn) -> None:
    """As the collector does, every time with another sequence and time, as a replay has them."""
    (count,) = await warehouse.rows("SELECT count() AS rows FROM turns")
    first = count["rows"] + 1
    at = AT + timedelta(seconds=first)
    rows: list[Row] = []
    for number, one in enumerate(turns, first):
        row = row_of(TABLES[Turn.TOPIC], received(one, number), f"made/{first}", at)
        rows.append(row | {"body": encode(one).decode()})
    await Facts(warehouse).insert(TABLES[Turn.TOPIC], rows, again=True)


CALLS = (
    call("a1", "a"),
    call("a2", "a", parent_turn_id=named_id("turn", "a1")),
    call("a3", "a", "top_p", parent_turn_id=named_id("turn", "a1"), attempt=2),
    call("b1", "b", "top_p"),
    call("b2", "b", "error", response=None, error="the engine failed"),
    call("b3", "b", "top_p", api="responses", trajectory_by="run"),
    call("c1", "c", arm="mixed"),
    call("c2", "c", parent_turn_id=named_id("turn", "c1")),
    call("d1", "d", arm="pinned"),
    call("d2", "d", "greedy", parent_turn_id=named_id("turn", "d1")),
    call("e1", "e", "of_a_later_version"),
    call("f1", "f"),
)


async def test_certificate_counts_every_call_once_and_names_what_bars_the_others(warehouse: Warehouse) -> None:
    await store(warehouse, *CALLS)
    await store(warehouse, *CALLS[::-1])  # a replay
    (one,) = await report(warehouse, "support", SINCE)

    assert (one.role, one.calls, one.learnable, one.pinned) == ("support", 10, 3, 2)
    assert [(barred.reason, barred.calls, barred.points) for barred in one.barred] == [
        ("top_p", 3, 30.0), ("mixed", 2, 20.0), ("error", 1, 10.0), ("of_a_later_version", 1, 10.0),
    ]  # fmt: skip
    assert all(barred.remedy for barred in one.barred)
    shares = one.trajectories
    assert (shares.all, shares.some, shares.none) == (1, 1, 3)
    assert shares.reasons == {"top_p": 2, "mixed": 1, "of_a_later_version": 1}
    assert (one.forks, one.unlinked) == (1, 1)
    assert [(api.name, api.calls, api.learnable) for api in one.apis] == [("", 9, 3), ("responses", 1, 0)]
    assert {way.name: way.calls for way in one.recognised} == {"": 9, "run": 1}


async def test_a_certificate_is_of_its_role_and_its_time(warehouse: Warehouse) -> None:
    await store(warehouse, *CALLS, call("g1", "g", "greedy", role="sales"))

    assert [one.role for one in await report(warehouse, None, SINCE)] == ["sales", "support"]
    assert [one.role for one in await report(warehouse, "sales", SINCE)] == ["sales"]
    assert await report(warehouse, "support", AT + timedelta(seconds=1)) == []


async def test_a_trajectory_has_its_own_certificate(warehouse: Warehouse) -> None:
    await store(warehouse, *CALLS)

    total, barred = await of_trajectory(warehouse, "support", named_id("trajectory", "a")) or (0, [])
    assert (total, [(one.reason, one.calls) for one in barred]) == (3, [("top_p", 1)])
    assert await of_trajectory(warehouse, "support", named_id("trajectory", "none")) is None


async def test_no_calls_are_no_certificate(warehouse: Warehouse) -> None:
    assert await report(warehouse, None, SINCE) == []
