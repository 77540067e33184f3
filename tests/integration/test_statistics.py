"""Statistics on the real ClickHouse: each trajectory, reward and call once, whatever they are grouped by."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.core.contract import Message, Outcome, PolicyClaim, Reward, Trajectory, Turn, named_id
from ratchet.core.contract.http.statistics import StatisticsOut
from ratchet.core.contract.reward import RewardComponent, RewardFunction, RewardMetadata
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata
from ratchet.core.contract.turn import Provider, Usage
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.statistics import DIMENSIONS, GROUPS, StatisticsQuery, statistics
from ratchet.core.stores.trajectory_search import NAME
from ratchet.core.stores.warehouse import Row, Warehouse
from tests.support.console_data import console, store as store_rows
from tests.support.messages import trajectory, turn
from tests.support.running import prepared_warehouse

AT = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
SINCE, UNTIL = AT - timedelta(hours=2), AT + timedelta(hours=2)


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def claim(version: int, arm: str = "stable", role: str = "support") -> PolicyClaim:
    return PolicyClaim(role=role, version=version, digest="a" * 64, arm=arm, weight=0.0)


def ended(name: str, after: timedelta = timedelta(0), status: str | None = "success", **members: Any) -> Trajectory:
    values: dict[str, Any] = {
        "policy": claim(1),
        "start_timestamp": AT + after,
        "end_timestamp": AT + after,
        "outcome": Outcome(status=status) if status else None,  # pyright: ignore[reportArgumentType] - of the tests' own
        "task_context": TaskContext(task_id=name, instructions="i", domain="refunds"),
        "metadata": TrajectoryMetadata(model="reported"),
    }
    return trajectory(name, **values | members)


def rewarded(name: str, total: float, revision: int = 0, confidence: float = 1.0) -> Reward:
    return Reward(
        reward_id=named_id("reward", name, revision),
        trajectory_id=named_id("trajectory", name),
        session_id="s",
        timestamp=AT + timedelta(minutes=revision),
        reward_components={"task_completion": RewardComponent(score=total, weight=1.0, source="outcome")},
        total_reward=total,
        reward_type="outcome",
        metadata=RewardMetadata(evaluator="standard", evaluation_method="weighted", confidence=confidence),
        role="support",
        revision=revision,
        reward_function=RewardFunction(name="standard", version="1"),
    )


def call(name: str, run: str, **members: Any) -> Turn:
    values: dict[str, Any] = {
        "turn_id": named_id("turn", name),
        "trajectory_id": named_id("trajectory", run),
        "timestamp": AT,
        "policy": claim(1),
    }
    return turn(name, **values | members)


async def store(warehouse: Warehouse, *messages: Message, first: int = 1) -> None:
    """What is stored later has a higher sequence."""
    await store_rows(warehouse, *messages, first=first, at=AT + timedelta(seconds=first))


async def asked(warehouse: Warehouse, *by: str, only: dict[str, str] | None = None, **how: Any) -> StatisticsOut:
    return await statistics(warehouse, StatisticsQuery(since=SINCE, until=UNTIL, by=by, only=only or {}, **how))


USED = (
    call("u1", "a", key_id="k1", cost_usd=0.5, latency_ms=100.0, first_token_ms=10.0,
         usage=Usage(prompt=100, completion=20, cached=40, reasoning=5), provider=Provider(model="m")),
    call("u2", "a", key_id="k1", cost_usd=0.25, latency_ms=300.0, usage=Usage(prompt=50, completion=10)),
    call("u3", "b", key_id="k2", policy=claim(2, "canary"), error="late", response=None, latency_ms=9000.0, usage=None),
    call("u4", "b", key_id="k2", policy=claim(2, "canary"), finish_reason="cancelled", latency_ms=8000.0, usage=None,
         timestamp=AT + timedelta(hours=1)),
)  # fmt: skip


async def fill(warehouse: Warehouse) -> None:
    """Two trajectories with calls, one without; a revised reward, and one for which nothing was known."""
    await store(
        warehouse,
        ended("a", agent_id="first", subordinate_profile="clerk"),
        ended("b", timedelta(hours=1), "failure", agent_id="second", policy=claim(2, "canary")),
        ended("c", status=None, agent_id="first", policy=None),
        rewarded("a", 0.2),
        rewarded("a", 0.8, revision=1),
        rewarded("b", 0.4),
        rewarded("c", 0.9, confidence=0.0),
    )
    await store(warehouse, *USED)


async def test_figures_of_a_version_are_those_of_its_runs_and_calls(warehouse: Warehouse) -> None:
    await fill(warehouse)
    first, second, unknown = (await asked(warehouse, "policy")).groups

    assert (first.names, second.names, unknown.names) == (["support@1"], ["support@2"], [None])
    assert (first.trajectories, first.outcomes, first.successes, first.success_share) == (1, 1, 1, 1.0)
    assert (first.rewarded, first.mean_reward, first.reward_interval) == (1, 0.8, None)
    assert (first.calls, first.errors, first.cancelled, first.prompt_tokens, first.cached_tokens) == (2, 0, 0, 150, 40)
    assert (first.completion_tokens, first.reasoning_tokens, first.cost_usd, first.unpriced) == (30, 5, 0.75, 0)
    assert first.latency_ms is not None
    assert first.latency_ms[0] <= first.latency_ms[1] <= first.latency_ms[2] <= 300
    assert first.first_token_ms == (10, 10, 10)
    # Neither an error nor a call that its agent gave up says how long an answer takes.
    assert (second.calls, second.errors, second.cancelled, second.latency_ms, second.unpriced) == (2, 1, 1, None, 2)
    assert (unknown.trajectories, unknown.outcomes, unknown.rewarded, unknown.mean_reward) == (1, 0, 0, None)


async def test_sums_are_the_same_whatever_they_are_grouped_by(warehouse: Warehouse) -> None:
    await fill(warehouse)
    for by in DIMENSIONS:
        out = await asked(warehouse, by)
        assert (out.total.trajectories, out.total.calls, out.total.rewarded) == (3, 4, 2)
        assert out.total.mean_reward == pytest.approx(0.6)
        assert sum(group.trajectories for group in out.groups) == 3, by
        assert sum(group.calls for group in out.groups) == 4, by
        assert (out.other, out.others) == (None, 0)


NAMED: dict[str, list[tuple[str | None, int, int]]] = {
    "agent": [("first", 2, 2), ("second", 1, 2)],
    "domain": [("refunds", 3, 4)],
    "profile": [(None, 2, 2), ("clerk", 1, 2)],
    "outcome": [("failure", 1, 2), ("success", 1, 2), ("none", 1, 0)],
    "key": [("k1", 1, 2), ("k2", 1, 2), (None, 1, 0)],
    "model": [("reported", 2, 0), ("m", 1, 1), (None, 0, 3)],
    "arm": [("canary", 1, 2), ("stable", 1, 2), (None, 1, 0)],
}


async def test_calls_have_the_names_of_their_run_and_runs_of_their_calls(warehouse: Warehouse) -> None:
    await fill(warehouse)
    groups = {by: (await asked(warehouse, by)).groups for by in NAMED}
    assert {
        by: [(*group.names, group.trajectories, group.calls) for group in made] for by, made in groups.items()
    } == NAMED


async def test_what_came_twice_counts_once_as_it_is_now(warehouse: Warehouse) -> None:
    await fill(warehouse)
    await store(warehouse, *USED[::-1], first=10)
    again = ended("a", timedelta(minutes=90), "partial", agent_id="renamed")
    await store(warehouse, again, first=10)
    out = await asked(warehouse, "agent")

    assert (out.total.trajectories, out.total.successes, out.total.calls, out.total.cost_usd) == (3, 0, 4, 0.75)
    named = {group.names[0]: group for group in out.groups}
    assert {name: (group.trajectories, group.calls) for name, group in named.items()} == {
        "renamed": (1, 2), "second": (1, 2), "first": (1, 0),
    }  # fmt: skip
    assert [(point.at, point.trajectories, point.calls) for point in named["renamed"].points] == [
        (AT.replace(minute=0), 0, 2), (AT.replace(hour=12, minute=0), 1, 0),
    ]  # fmt: skip


async def test_a_report_that_moved_out_of_the_window_does_not_count_in_it(warehouse: Warehouse) -> None:
    await store(warehouse, ended("a"))
    await store(warehouse, ended("a", timedelta(hours=3)), first=10)
    assert (await asked(warehouse)).total.trajectories == 0


async def test_filters_are_those_of_the_list(warehouse: Warehouse) -> None:
    await fill(warehouse)
    filters: list[dict[str, str]] = [
        {"agent": "first"}, {"policy": "2"}, {"arm": "canary"}, {"outcome": "none"}, {"domain": "refunds"},
        {"model": "m"}, {"profile": "clerk"}, {"key": "k2"}, {"role": "sales"},
        {"agent": "first", "outcome": "success"},
    ]  # fmt: skip
    passing = [(await asked(warehouse, only=only)).total for only in filters]
    assert [(total.trajectories, total.calls) for total in passing] == [
        (2, 2), (1, 2), (1, 2), (1, 0), (3, 4), (1, 1), (1, 2), (1, 2), (0, 0), (1, 2),
    ]  # fmt: skip


async def test_evaluations_count_where_they_are_asked_for(warehouse: Warehouse) -> None:
    await store(warehouse, ended("e", policy=claim(1, "pinned")))
    await store(warehouse, call("e1", "e", policy=claim(1, "pinned")))
    counts = [
        (out.total.trajectories, out.total.calls, out.evaluation)
        for out in (
            await asked(warehouse),
            await asked(warehouse, evaluation=True),
            await asked(warehouse, only={"arm": "pinned"}),
        )
    ]  # fmt: skip
    assert counts == [(0, 0, False), (1, 1, True), (1, 1, True)]


async def test_further_groups_are_one_sum_and_counted(warehouse: Warehouse) -> None:
    runs = [
        ended(f"{agent} {n}", agent_id=f"agent {agent:02}")
        for agent in range(GROUPS + 3)
        for n in range(1 + (agent < 2))
    ]
    await store(warehouse, *runs)
    out = await asked(warehouse, "agent", "outcome")

    assert [group.names for group in out.groups[:3]] == [
        ["agent 00", "success"], ["agent 01", "success"], ["agent 02", "success"],
    ]  # fmt: skip
    assert (len(out.groups), out.others) == (GROUPS, 3)
    assert out.other is not None
    assert (out.other.trajectories, out.total.trajectories) == (3, GROUPS + 5)
    assert [point.trajectories for point in out.other.points] == [3]


async def test_names_that_go_on_for_ever_are_cut(warehouse: Warehouse) -> None:
    await store(warehouse, ended("long", agent_id="é" * 100_000), ended("longer", agent_id="é" * 100_001))
    (group,) = (await asked(warehouse, "agent")).groups
    assert (group.names, group.trajectories) == (["é" * NAME], 2)
    for shown in ("é" * NAME, "é" * 100_000):
        assert (await asked(warehouse, only={"agent": shown})).total.trajectories == 2


class Small(Warehouse):
    """A ClickHouse with little memory for a query."""

    def __init__(self, real: Warehouse, bytes_: int) -> None:
        self._real = real
        self._bytes = bytes_

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Its rows."""
        return await self._real.rows(f"{sql}, max_memory_usage = {self._bytes}", parameters)


async def test_long_names_are_cut_before_they_are_compared(warehouse: Warehouse) -> None:
    await store(warehouse, *(ended(f"t{n}", agent_id=f"{n}" + "a" * 1_000_000) for n in range(40)))
    assert (await asked(Small(warehouse, 100_000_000), "agent")).total.trajectories == 40


async def test_days_and_weeks_begin_where_people_begin_them(warehouse: Warehouse) -> None:
    await fill(warehouse)
    begins = {
        every: [point.at.isoformat() for point in (await asked(warehouse, every=every)).total.points]
        for every in ("hour", "day", "week")
    }
    assert begins == {
        "hour": ["2026-11-20T10:00:00+00:00", "2026-11-20T11:00:00+00:00"],
        "day": ["2026-11-20T00:00:00+00:00"],
        "week": ["2026-11-16T00:00:00+00:00"],
    }


async def test_the_console_answers_for_the_last_week_unless_asked_otherwise(warehouse: Warehouse) -> None:
    await fill(warehouse)
    async with console(warehouse, now=UNTIL) as http:
        plain = (await http.get("/v1/statistics")).json()
        assert (plain["since"], plain["until"], plain["every"]) == (
            "2026-11-13T12:30:00Z",
            "2026-11-20T12:30:00Z",
            "day",
        )
        assert (plain["total"]["trajectories"], plain["groups"]) == (3, [])
        asked = {"by": "agent,outcome", "agent": "first", "since": SINCE.isoformat(), "every": "hour"}
        groups = (await http.get("/v1/statistics", params=asked)).json()["groups"]
        assert [group["names"] for group in groups] == [["first", "success"], ["first", "none"]]
