"""Exports while facts arrive: page after page, with a real warehouse, every row comes exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.clock import utc_now
from ratchet.bus.received import Received
from ratchet.core.contract import Message, Preference, Trajectory, Turn
from ratchet.core.errors import NotFound
from ratchet.core.preferences.clickhouse_stored import Selection as PreferenceSelection, StoredPreferences
from ratchet.core.preferences.records import preference_of
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.exporters.base import Selection
from ratchet.extras.exporters.clickhouse_stored import PAGE, Stored
from ratchet.extras.exporters.exporting import export
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.messages import AT, stored_at, trajectory, turn
from tests.support.running import prepared_warehouse


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as warehouse:
        yield warehouse


LIFE = "1"
"""The life of the stream that the rows come from."""


async def store(warehouse: Warehouse, topic: str, messages: Sequence[Message], first: int) -> None:
    """Rows as the collector makes them, the `first` sequence and those after it."""
    table = TABLES[topic]
    received = [
        Received(one, topic, "", sequence, 1, f"event-{sequence}", stored_at(one), "", body=msgspec.json.encode(one))
        for sequence, one in enumerate(messages, start=first)
    ]
    await warehouse.insert(table.name, [row_of(table, one, LIFE, AT) for one in received], token=f"{topic} {first}")


def failed(name: str, at: datetime) -> Turn:
    return turn(name, timestamp=at, error="engine away", response=None)


async def test_every_failed_run_is_exported_once_while_more_of_them_fail(warehouse: Warehouse, tmp_path: Path) -> None:
    runs = [failed(f"run {n}", AT + timedelta(seconds=n)) for n in range(2 * PAGE + 3)]
    answered = [failed("answered later", AT), turn("answered later", 1)]
    ended = trajectory("ended")
    await store(warehouse, Turn.TOPIC, [*runs, *answered, failed("ended", AT)], 1)
    await store(warehouse, Trajectory.TOPIC, [ended], 1)
    progress: list[tuple[float, float | None]] = []
    seen: list[str] = []

    async def arriving() -> None:
        """Half a page of runs that failed after all others, and before them in the order of the export."""
        later = [failed(f"meanwhile {n}", AT + timedelta(days=1, seconds=n)) for n in range(PAGE // 2)]
        await store(warehouse, Turn.TOPIC, later, 10_000)

    stored = Stored(warehouse)
    ids = await stored.unanswered(Selection())
    assert ids == [run.trajectory_id for run in reversed(runs)]
    async for page in stored.turns(Selection(), ids):
        if not seen:
            await arriving()
        seen += [row["trajectory_id"] for row in page]
    assert seen == ids

    file = tmp_path / "runs.jsonl"
    report = await export(
        stored,
        "executions",
        Selection(until=AT + timedelta(hours=1)),
        file,
        "jsonl",
        lambda done, total=None: progress.append((done, total)),
    )
    everything = len(runs) + 1
    assert report.records == len(file.read_text().splitlines()) == everything
    assert {total for _, total in progress} == {everything}
    assert progress[-1][0] == everything


async def test_a_run_whose_agent_went_away_before_every_answer_is_exported(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    cancelled = turn("left", response=None, finish_reason="cancelled")
    stayed = [turn("stayed", response=None, finish_reason="cancelled"), turn("stayed", 1)]
    await store(warehouse, Turn.TOPIC, [cancelled, *stayed], 1)
    file = tmp_path / "runs.jsonl"
    await export(Stored(warehouse), "executions", Selection(), file, "jsonl", lambda done, total=None: None)
    (run,) = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert (run["trajectory_id"], run["success"], run["error"]) == (cancelled.trajectory_id, False, "cancelled")


async def test_a_run_that_failed_a_moment_ago_may_go_on_and_is_not_exported(warehouse: Warehouse) -> None:
    await store(warehouse, Turn.TOPIC, [failed("long ago", AT), failed("just now", utc_now())], 1)
    assert await Stored(warehouse).unanswered(Selection()) == [turn("long ago").trajectory_id]


async def test_a_limit_takes_trajectories_first_and_then_the_newest_failed_runs(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    runs = [failed(f"run {n}", AT + timedelta(seconds=n)) for n in range(5)]
    await store(warehouse, Turn.TOPIC, runs, 1)
    await store(warehouse, Trajectory.TOPIC, [trajectory("ended")], 1)
    file = tmp_path / "runs.jsonl"
    await export(Stored(warehouse), "executions", Selection(limit=3), file, "jsonl", lambda done, total=None: None)
    exported = [msgspec.json.decode(line)["trajectory_id"] for line in file.read_bytes().splitlines()]
    assert exported == [trajectory("ended").trajectory_id, runs[4].trajectory_id, runs[3].trajectory_id]


async def test_preferences_are_read_once_each_while_more_of_them_arrive(warehouse: Warehouse) -> None:
    def preferences(name: str) -> list[Preference]:
        return [preference_of({"prompt": f"{name} {n}", "chosen": "Here.", "rejected": "?"}, None) for n in range(7)]

    at_first = preferences("first")
    await store(warehouse, Preference.TOPIC, at_first, 1)
    stored = StoredPreferences(warehouse)
    page = await stored.newest(PreferenceSelection(), 3)
    await store(warehouse, Preference.TOPIC, preferences("meanwhile"), 100)
    read = list(page)
    while page:
        page = await stored.newest(PreferenceSelection(), 3, before=page[-1])
        read += page
    assert [one.preference for one in read] == at_first[::-1]


async def test_an_export_of_nothing_makes_no_file_and_replaces_none(warehouse: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    absent, there = folder / "absent.jsonl", folder / "there.parquet"
    there.write_bytes(b"of yesterday")
    for file in (absent, there):
        with pytest.raises(NotFound, match="no such tasks to write"):
            await export(Stored(warehouse), "tasks", Selection(), file, file.suffix[1:], lambda done, total=None: None)
    assert names_in(folder) == ["there.parquet"]
    assert there.read_bytes() == b"of yesterday"
