"""Lists of runs, and `latest`, on the real ClickHouse: without evaluations unless asked, with names and models."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from ratchet.cli.ids import Latest, newest_trajectory, stored_under
from ratchet.cli.trajectories import Newest, newest_in, show_list
from ratchet.core.contract import PolicyClaim, Turn
from ratchet.core.contract.turn import Provider
from ratchet.core.errors import Rejected
from ratchet.core.rules.texts import id_of_name
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.trajectory_list import TrajectoryList
from ratchet.core.stores.trajectory_search import TrajectoryFilter
from ratchet.core.stores.warehouse import Row, Warehouse
from tests.support.console_data import store
from tests.support.messages import AT, trajectory, turn
from tests.support.running import prepared_warehouse

NOW = AT + timedelta(hours=1)
WITHOUT, EVERY = TrajectoryFilter(evaluation=False), TrajectoryFilter()


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def claim(arm: str) -> PolicyClaim:
    return PolicyClaim(role="support", version=1, digest="a" * 64, arm=arm, weight=0.0)


def call(name: str, arm: str = "stable", after_s: float = 0, **changes: Any) -> Turn:
    return turn(name, policy=claim(arm), timestamp=at(after_s), **changes)


def at(after_s: float) -> datetime:
    return AT + timedelta(seconds=after_s)


async def listed(warehouse: Warehouse, asked: TrajectoryFilter) -> tuple[set[str], set[str], bool]:
    ended, opened, hidden, _ = await newest_in(TrajectoryList(warehouse, lambda: NOW), asked, 10)
    return {one.trajectory_id for one in ended}, {one.trajectory_id for one in opened}, hidden


async def latest(warehouse: Warehouse, *, answered: bool = False) -> str | None:
    one = await newest_trajectory(warehouse, Latest(None), NOW, answered=answered)
    return one.trajectory_id if one else None


async def test_lists_and_latest_leave_evaluations_out_unless_asked(warehouse: Warehouse) -> None:
    played, tried = call("played", "pinned", 50), call("tried", "pinned", 60)
    ended = trajectory("tried", policy=claim("pinned"), start_timestamp=at(60), end_timestamp=at(60))
    await store(warehouse, played, tried, ended)
    assert await listed(warehouse, WITHOUT) == (set(), set(), True)
    assert await latest(warehouse) is None
    run = call("run", after_s=10)
    await store(warehouse, run, first=10)
    assert await listed(warehouse, WITHOUT) == (set(), {run.trajectory_id}, False)
    assert await listed(warehouse, EVERY) == ({tried.trajectory_id}, {played.trajectory_id, run.trajectory_id}, False)
    assert await latest(warehouse) == run.trajectory_id


async def test_search_whose_time_is_over_is_not_made_again_for_evaluations(warehouse: Warehouse) -> None:
    old = trajectory("old", start_timestamp=at(-90_000), end_timestamp=at(-90_000))
    await store(warehouse, trajectory("one", start_timestamp=AT, end_timestamp=AT), old)
    readings = itertools.count()
    listing = TrajectoryList(warehouse, lambda: NOW, lambda: 3.0 * next(readings))
    missing = await newest_in(listing, TrajectoryFilter(text="quagga", evaluation=False), 10)
    assert missing.searched_since is not None
    assert next(readings) == 4, "the clock is read when a search begins, and when it ends: of ended ones, of open ones"


def test_list_names_where_a_search_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    reached = AT + timedelta(seconds=8.5)
    newest = Newest((), (), hides_evaluations=False, searched_since=reached)
    for until in (None, AT + timedelta(hours=1)):
        show_list(newest, "no such trajectories", until)
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.startswith("none whose texts were read so far")
        assert "--until 2026-01-05T12:00:08.500Z goes on" in shown
    show_list(newest, "none", reached)
    assert "the console's list goes on there" in " ".join(capsys.readouterr().out.split()), "it came no further"


async def test_feedback_on_the_latest_takes_a_run_with_an_answer(warehouse: Warehouse) -> None:
    answered, failed = call("answered"), call("failed", after_s=20, response=None, error="away", finish_reason=None)
    await store(warehouse, answered, failed)
    assert await latest(warehouse) == failed.trajectory_id
    assert await latest(warehouse, answered=True) == answered.trajectory_id


async def test_lists_show_the_name_that_the_agent_gave_and_models_that_answered(warehouse: Warehouse) -> None:
    named = call("named", trajectory_name="nightly refunds 17", provider=Provider(model="gpt-4o-2024-08-06"))
    await store(warehouse, named, call("plain"))
    opened = (await newest_in(TrajectoryList(warehouse, lambda: NOW), WITHOUT, 10)).open
    shown = {one.trajectory_id: (one.name, one.model) for one in opened}
    assert shown[named.trajectory_id] == ("nightly refunds 17", "gpt-4o-2024-08-06")
    assert sorted(value for value in shown.values() if value[0] is None) == [(None, None)]


class Weighed(Warehouse):
    """A warehouse that counts the bytes which its queries read."""

    bytes_read = 0

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Its rows."""
        result = await self._client.query(sql, parameters=dict(parameters or {}))
        self.bytes_read += int(result.summary["read_bytes"])
        return list(result.named_results())


async def test_list_reads_the_body_of_the_first_call_of_an_open_run_alone(shared_settings: SharedSettings) -> None:
    async with prepared_warehouse(shared_settings) as made:
        await made.command("SYSTEM STOP MERGES turns")
        for n in range(4):
            body = {"role": "user", "content": "a" * (1_000_000 if n else 10)}
            await store(made, turn("run", n, messages=[body], agent_id="first" if n == 0 else "next"), first=n + 1)
        weighed = await Weighed.connect(shared_settings)
        (run,) = (await newest_in(TrajectoryList(weighed, lambda: NOW), EVERY, 10)).open
        await weighed.close()
    assert run.agent_id == "first"
    assert weighed.bytes_read < 1_000_000


async def test_a_name_that_begins_another_id_is_refused(warehouse: Warehouse) -> None:
    name, other = "cafe", "cafe1234-0000-7000-8000-000000000000"
    mine = call("cafe", trajectory_id=id_of_name(name))
    await store(warehouse, mine)
    assert await stored_under(warehouse, name) == mine.trajectory_id
    await store(warehouse, call("other", trajectory_id=other), first=5)
    with pytest.raises(Rejected, match=f"cafe is the name of the trajectory {mine.trajectory_id} and begins the id of"):
        await stored_under(warehouse, name)
    assert await stored_under(warehouse, "cafe12") == other
    assert await stored_under(warehouse, "dead") is None
