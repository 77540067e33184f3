"""What the history says of capture and usage, on the real ClickHouse: replays and duplicates count nothing twice."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.core.contract import PolicyClaim, Turn, encode, named_id
from ratchet.core.contract.turn import Provider, Trainable, Usage
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.capture import of_trajectory, report
from ratchet.core.stores.usage import GROUPS, SINCE as SINCE_OF_ROLE, hourly, usage
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


USED = (
    call("u1", "u", key_id="k1", cost_usd=0.5, latency_ms=100.0, first_token_ms=10.0,
         usage=Usage(prompt=100, completion=20, cached=40, reasoning=5), provider=Provider(model="m")),
    call("u2", "u", key_id="k1", cost_usd=0.25, latency_ms=300.0, usage=Usage(prompt=50, completion=10)),
    call("u3", "u", key_id="k2", policy=claim(2, "canary"), error="late", response=None, latency_ms=9000.0, usage=None),
    call("u4", "u", key_id="k2", policy=claim(2, "canary"), finish_reason="cancelled", latency_ms=8000.0, usage=None,
         timestamp=AT + timedelta(hours=1)),
)  # fmt: skip


async def test_usage_is_summed_once_by_version_key_api_and_hour(warehouse: Warehouse) -> None:
    await store(warehouse, *USED)
    await store(warehouse, *USED[::-1])
    first, second = await usage(warehouse, "version", "support", SINCE)

    assert (first.group, first.calls, first.errors, first.cancelled) == ("support@1", 2, 0, 0)
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens, first.reasoning_tokens) == (
        150,
        40,
        30,
        5,
    )
    assert (first.cost_usd, first.unpriced) == (0.75, 0)
    assert first.latency_ms is not None
    assert first.latency_ms[0] <= first.latency_ms[1] <= first.latency_ms[2] <= 300
    assert first.first_token_ms == (10, 10, 10)
    # Neither an error nor a call that its agent gave up says how long an answer takes.
    assert (second.group, second.calls, second.errors, second.cancelled) == ("support@2", 2, 1, 1)
    assert (second.latency_ms, second.first_token_ms, second.unpriced) == (None, None, 2)
    groups = {by: [(one.group, one.calls) for one in await usage(warehouse, by, None, SINCE)] for by in GROUPS}
    assert groups["key"] == [("k1", 2), ("k2", 2)]
    assert groups["hour"] == [("2026-11-20T10:00:00Z", 3), ("2026-11-20T11:00:00Z", 1)]
    assert groups["api"] == [("", 4)]
    assert groups["arm"] == [("stable", 2), ("canary", 2)]
    assert groups["model"] == [("m", 1), ("", 3)]


async def test_the_view_of_usage_gives_operators_the_same(warehouse: Warehouse) -> None:
    await store(warehouse, *USED)
    await store(warehouse, *USED)
    rows = await warehouse.rows(
        "SELECT policy_version, sum(calls) AS calls, sum(cost_usd) AS cost_usd,"
        " quantilesTDigestMerge(0.5, 0.95, 0.99)(latency)[3] AS p99 FROM hourly_usage GROUP BY policy_version"
        " ORDER BY policy_version"
    )
    assert [(row["policy_version"], row["calls"], row["cost_usd"]) for row in rows] == [(1, 2, 0.75), (2, 2, 0.0)]
    assert rows[0]["p99"] == 300


async def test_no_usage_is_no_group(warehouse: Warehouse) -> None:
    assert await usage(warehouse, "key", None, SINCE) == []
    assert await report(warehouse, None, SINCE) == []


async def test_usage_reads_only_the_hours_that_are_asked_for(warehouse: Warehouse) -> None:
    """The primary key leaves out older granules, also where every role is asked for."""
    await warehouse.command(
        "INSERT INTO calls (event_id, role, at, ingested_at)"
        " SELECT toString(number), 'support', toDateTime64('2026-11-20', 3, 'UTC') - number * 60, now64(3)"
        " FROM numbers(100000)"
    )
    plan = await warehouse.rows(
        f"EXPLAIN indexes = 1 {hourly(SINCE_OF_ROLE)}", {"role": "", "since": datetime(2026, 11, 19, tzinfo=UTC)}
    )
    text = "\n".join(str(next(iter(row.values()))) for row in plan)
    granules = re.findall(r"Granules: (\d+)/(\d+)", text)
    assert granules
    assert int(granules[-1][0]) <= 2 < int(granules[-1][1])
