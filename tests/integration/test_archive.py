"""The archive on the real servers: rows leave ClickHouse once their file is safe, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ratchet.bus.clock import utc_now
from ratchet.bus.message import named_id
from ratchet.bus.testing import eventually
from ratchet.core.contract import Alert, Message
from ratchet.core.datasets.archives import Archives
from ratchet.core.errors import NotFound, ObjectsUnavailable
from ratchet.core.service.alerts import Alerts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.exporters.archived import ArchivedRows
from ratchet.extras.exporters.base import Selection
from ratchet.extras.exporters.clickhouse_stored import Stored
from ratchet.extras.exporters.exporting import export
from ratchet.trajectory_collector import archiving
from ratchet.trajectory_collector.archiving import DAYS_PER_PASS, Archiver
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.clickhouse_retention import Retention
from ratchet.trajectory_collector.ledger import STORED, Account, Entry, Gap
from ratchet.trajectory_collector.settings import DaysKept, Settings
from tests.support.console_data import LIFE, store
from tests.support.messages import trajectory, turn
from tests.support.rewards import feedback
from tests.support.running import prepared_objects, prepared_warehouse

HOT, WHOLE = {"*": 30, "kept": 300}, {"*": 120, "kept": 400}
OLD, NEW = timedelta(days=40), timedelta(days=3)


class Killed(BaseException):
    """The process ends here."""


class Interrupted:
    """Stands before a store, and ends the process at a call."""

    def __init__(self, stands_before: Any, calls: Iterator[int]) -> None:
        """`calls`: shared by all stores; the process ends when it has no more."""
        self._store = stands_before
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if asyncio.iscoroutinefunction(call):

            async def awaited(*args: Any, **options: Any) -> Any:
                self._count()
                return await call(*args, **options)

            return awaited

        def called(*args: Any, **options: Any) -> Any:
            self._count()
            return call(*args, **options)

        return called

    def _count(self) -> None:
        if next(self._calls, None) is None:
            raise Killed


@dataclass
class World:
    """The stores of a collector, and its alerts."""

    warehouse: Warehouse
    objects: Objects
    raised: list[Alert] = field(default_factory=list)
    number: int = 0

    def archiver(self, *, now: Callable[[], datetime] = utc_now, **stores: Any) -> Archiver:
        async def publish(alert: Alert) -> None:
            self.raised.append(alert)

        async def held() -> list[Alert]:
            return []

        alerts = Alerts("trajectory_collector", publish, utc_now, held)
        stores = {"warehouse": self.warehouse, "objects": self.objects, "erased": Erased(self.warehouse)} | stores
        return Archiver(**stores, hot=HOT, whole=WHOLE, alerts=alerts, now=now)

    async def add(self, *messages: Message, age: timedelta) -> None:
        await store(self.warehouse, *messages, first=self.number + 1, at=utc_now() - age)
        self.number += len(messages)

    async def hot(self, table: str = "trajectories") -> list[str]:
        rows = await self.warehouse.rows(f"SELECT trajectory_id FROM {table} FINAL ORDER BY trajectory_id")
        return [row["trajectory_id"] for row in rows]

    def archived(self, table: str = "trajectories") -> list[str]:
        archives = Archives(self.objects)
        return sorted(row.trajectory_id for file in archives.files(table=table) for row in archives.rows(file))

    async def until_deleted(self) -> None:
        async def done() -> bool:
            (row,) = await self.warehouse.rows(
                "SELECT count() AS n FROM system.mutations WHERE database = currentDatabase() AND NOT is_done"
            )
            return not row["n"]

        await eventually(done)


@pytest.fixture
async def world(shared_settings: SharedSettings) -> AsyncIterator[World]:
    async with prepared_warehouse(shared_settings) as warehouse:
        yield World(warehouse, prepared_objects(shared_settings))


def put(world: World, key: str, body: bytes) -> None:
    world.objects._client.put_object(Bucket=world.objects._bucket, Key=key, Body=body)  # pyright: ignore[reportPrivateUsage]


def ids(*names: str) -> list[str]:
    return sorted(trajectory(name).trajectory_id for name in names)


async def test_old_rows_are_archived_and_all_others_stay(world: World) -> None:
    await world.add(trajectory("old"), turn("old"), turn("old", 1), age=OLD)
    await world.add(trajectory("new"), turn("new"), trajectory("of a role that keeps"), age=NEW)
    await world.add(trajectory("kept", role="kept"), age=OLD)
    await world.archiver().tick()
    await world.until_deleted()
    assert await world.hot() == ids("new", "of a role that keeps", "kept")
    assert await world.hot("turns") == ids("new")
    assert world.archived() == ids("old")
    assert world.archived("turns") == ids("old", "old")
    assert world.raised == []


async def test_an_archive_is_read_by_other_programs(world: World, tmp_path: Path) -> None:
    await world.add(trajectory("one", user_ref="u1"), trajectory("two"), age=OLD)
    await world.archiver().tick()
    for file in Archives(world.objects).files():
        path = tmp_path / file.uri.split("/", 3)[3]
        path.parent.mkdir(parents=True)
        path.write_bytes(world.objects.get(file.uri))
    rows = duckdb.sql(
        "SELECT role, count(*), count(user_ref), min(body->>'$.outcome.status'), max(day)"
        f" FROM read_parquet('{tmp_path}/archive/trajectories/*/*/*.parquet') GROUP BY role"
    ).fetchall()
    assert rows == [("support", 2, 1, "success", (utc_now() - OLD).date())]


async def test_a_pass_that_is_killed_at_any_call_neither_loses_nor_doubles(world: World) -> None:
    names = ["a", "b", "c"]
    await world.add(*(trajectory(name) for name in names), *(turn(name) for name in names), age=OLD)
    kills = 0
    while True:
        calls = iter(range(kills))
        stores = {name: Interrupted(getattr(world, name), calls) for name in ("warehouse", "objects")}
        try:
            await world.archiver(**stores).tick()
            break
        except Killed:
            kills += 1
        for table in ("trajectories", "turns"):
            assert sorted({*await world.hot(table), *world.archived(table)}) == ids(*names)
            assert world.archived(table) in ([], ids(*names))
        await world.until_deleted()
    assert kills > 10
    await world.archiver().tick()
    await world.until_deleted()
    assert await world.hot() == await world.hot("turns") == []
    assert world.archived() == world.archived("turns") == ids(*names)


async def test_two_collectors_at_once_archive_each_row_once(world: World) -> None:
    names = [str(number) for number in range(40)]
    await world.add(*(trajectory(name) for name in names), age=OLD)
    await asyncio.gather(*(world.archiver().tick() for _ in range(3)))
    await world.until_deleted()
    assert await world.hot() == []
    assert world.archived() == ids(*names)


async def test_rows_stay_while_the_store_is_away_and_an_alert_is_raised(world: World) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            raise ObjectsUnavailable("connection refused")

    await world.add(trajectory("old"), age=OLD)
    archiver = world.archiver(objects=Away())
    await archiver.tick()
    assert await world.hot() == ids("old")
    assert [alert.key for alert in world.raised] == ["archive"]
    archiver.objects = world.objects
    archiver.archives = Archives(world.objects)
    await archiver.tick()
    assert [alert.cleared for alert in world.raised] == [False, True]


@pytest.mark.parametrize("damaged", [slice(None), slice(1500, 1600)], ids=["whole", "in a body"])
async def test_a_file_that_is_not_what_was_sent_keeps_its_rows(world: World, damaged: slice) -> None:
    class Damaging:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.objects, name)

        def put_file(self, path: Path, prefix: str, suffix: str = "") -> Any:
            ref = world.objects.put_file(path, prefix, suffix)
            blob = bytearray(world.objects.get(ref.uri))
            blob[damaged] = bytes(len(blob[damaged]))
            put(world, ref.uri.removeprefix("s3://").partition("/")[2], bytes(blob))
            return ref

    names = [str(number) for number in range(5)]
    await world.add(*(trajectory(name) for name in names), age=OLD)
    for stands_before in (Damaging(), world.objects):  # the next pass comes upon the file
        await world.archiver(objects=stands_before).tick()
        await world.until_deleted()
        assert await world.hot() == ids(*names)
    assert "does not have sha256" in world.raised[0].summary


async def test_a_version_that_was_replaced_does_not_come_back(world: World) -> None:
    await world.warehouse.command("SYSTEM STOP MERGES trajectories")
    for days in (45, 40):
        await store(world.warehouse, trajectory("a"), at=utc_now() - timedelta(days=days))
    await world.warehouse.command("SYSTEM START MERGES trajectories")
    await world.archiver().tick()
    await world.until_deleted()
    assert await world.hot() == []


async def test_files_of_others_and_damaged_ones_hold_up_nothing(world: World) -> None:
    await world.add(trajectory("due"), age=OLD)
    await world.add(trajectory("gone"), age=timedelta(days=200))
    folder = "archive/trajectories/role=support"
    foreign = [f"{folder}/day=2025-13-41/{'0' * 64}.parquet", f"archive/other/role=a/day=2025-01-01/{'0' * 64}.parquet"]
    for key in (*foreign, f"{folder}/day=2025-01-01/{'0' * 64}.parquet", f"{folder}/notes.txt"):
        put(world, key, b"of others")
    await world.archiver().tick()
    await world.until_deleted()
    assert (await world.hot(), world.archived(), world.raised) == ([], ids("due"), [])
    assert all(world.objects.exists(f"s3://{world.objects._bucket}/{key}") for key in foreign)  # pyright: ignore[reportPrivateUsage]


async def test_a_large_trajectory_is_archived_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "PART_ROWS", 4)
    monkeypatch.setattr(archiving, "FILE_BYTES", 1)
    await world.add(*(turn("long", number) for number in range(10)), *(turn(name) for name in "abc"), age=OLD)
    read = Counter[int]()
    rows = world.warehouse.rows

    async def counted(sql: str, *parameters: Any) -> Any:
        answer = await rows(sql, *parameters)
        if "LIMIT 1 BY" in sql:
            read[len(answer)] += 1
        return answer

    world.warehouse.rows = counted  # type: ignore[method-assign]
    await asyncio.gather(world.archiver().tick(), world.archiver().tick())
    await world.until_deleted()
    assert max(read) == 4
    assert len(Archives(world.objects).files()) == 4
    assert (await world.hot("turns"), world.archived("turns")) == ([], ids(*["long"] * 10, *"abc"))


async def test_what_was_archived_is_not_absent_where_rows_stay_for_longer_now(world: World) -> None:
    account = Account("RL_TRAJECTORIES", "collector", LIFE)
    ledger = Ledger(world.warehouse, {account.stream: ["trajectories"]})
    for number, age in enumerate((OLD, NEW), 1):
        await ledger.write(account, [Entry(number, STORED)], utc_now() - age)
    await world.add(trajectory("old"), age=OLD)
    await world.archiver().tick()
    await world.until_deleted()
    balance = await ledger.balance(account, 0, Gap(1, 2), utc_now() - timedelta(days=60))
    assert balance.absent == [Gap(2, 2)]


async def test_rows_that_clickhouse_does_not_delete_raise_an_alert(world: World) -> None:
    class Hanging:
        pending_s = 60

        def __getattr__(self, name: str) -> Any:
            return getattr(world.warehouse, name)

        async def rows(self, sql: str, *parameters: Any) -> Any:
            if "system.mutations" in sql:
                assert [*(await world.warehouse.rows(sql, *parameters))] == []
                return [{"reason": "", "pending_s": self.pending_s}]
            return await world.warehouse.rows(sql, *parameters)

    await world.add(trajectory("old"), age=OLD)
    hanging = Hanging()
    await world.archiver(warehouse=hanging).tick()
    assert (world.raised, world.archived()) == ([], [])
    hanging.pending_s = 2 * 86_400
    await world.archiver(warehouse=hanging).tick()
    assert "does not get on with it" in world.raised[0].summary


async def test_clocks_that_differ_archive_and_remove_nothing(world: World) -> None:
    await world.add(trajectory("young"), age=NEW)
    await world.archiver(now=lambda: utc_now() + timedelta(days=4000)).tick()
    assert await world.hot() == ids("young")
    assert "the clocks differ" in world.raised[0].summary
    long_ago = datetime(1970, 1, 5, tzinfo=UTC)
    assert await world.archiver()._due("trajectories", long_ago) == []  # pyright: ignore[reportPrivateUsage]


async def test_what_expires_goes_a_few_days_at_a_time(world: World) -> None:
    for age in range(130, 130 + DAYS_PER_PASS + 1):
        await world.add(trajectory(str(age)), age=timedelta(days=age))
    archiver = world.archiver()
    await archiver.tick()
    assert world.archived() == ids("130")
    assert "too old at once" in world.raised[0].summary
    await archiver.tick()
    assert world.archived() == []
    assert world.raised[1].cleared


async def test_trajectories_are_erased_from_the_archive(world: World) -> None:
    await world.add(*(trajectory(name, user_ref="u1" if name == "b" else None) for name in "abc"), turn("b"), age=OLD)
    await world.archiver().tick()
    archives = Archives(world.objects)
    of_person = archives.ids_of("user_ref", "u1")
    assert of_person == {("support", trajectory("b").trajectory_id)}
    assert archives.ids_of("user_ref", "u") == set()
    assert archives.erase(of_person).rows == 2
    assert world.archived() == ids("a", "c")
    assert world.archived("turns") == []
    assert archives.erase(of_person).rows == 0


async def test_an_export_has_what_is_stored_and_what_is_archived_once(world: World, tmp_path: Path) -> None:
    await world.add(*(trajectory(name, end_timestamp=utc_now() - OLD) for name in "ab"), age=OLD)
    await world.archiver().tick()
    await world.until_deleted()
    await world.add(trajectory("a", end_timestamp=utc_now() - OLD), trajectory("c", end_timestamp=utc_now()), age=NEW)
    file, archived = tmp_path / "all.jsonl", ArchivedRows(Archives(world.objects))

    async def exported(**chosen: Any) -> list[str]:
        selection = Selection(**chosen)
        stored = Stored(world.warehouse, archived)
        await export(stored, "trajectories", selection, file, "jsonl", lambda *_: None)
        return sorted(json.loads(line)["trajectory_id"] for line in file.read_text().splitlines())

    assert await exported() == ids("a", "b", "c")
    assert await exported(limit=2) == ids("a", "c")
    assert await exported(since=utc_now() - timedelta(days=35)) == ids("c")
    with pytest.raises(NotFound):
        await exported(min_reward=0.1)
    with pytest.raises(NotFound):
        await exported(role="kept")


async def test_an_archived_run_whose_last_call_failed_is_exported_once(world: World, tmp_path: Path) -> None:
    await world.add(trajectory("a"), turn("a"), age=OLD)
    await world.archiver().tick()
    await world.until_deleted()
    await world.add(turn("a", 1, response=None, error="timeout", timestamp=utc_now() - NEW), age=NEW)
    stored = Stored(world.warehouse, ArchivedRows(Archives(world.objects)))
    report = await export(stored, "executions", Selection(), tmp_path / "a.jsonl", "jsonl", lambda *_: None)
    assert report.records == 1


async def test_what_is_erased_during_a_pass_does_not_stay_in_its_file(world: World) -> None:
    seen: list[list[str]] = []

    class Late(Erased):
        async def among(self, names: Collection[str]) -> set[tuple[str, str]]:
            seen.append([*names])
            return {("support", trajectory("a").trajectory_id)}

    await world.add(trajectory("a"), trajectory("b"), age=OLD)
    await world.archiver(erased=Late(world.warehouse)).tick()
    assert (world.archived(), seen[0]) == (ids("b"), ids("a", "b"))


async def test_what_a_killed_eraser_brought_back_is_erased(world: World) -> None:
    await world.add(trajectory("a"), trajectory("b"), turn("a"), age=OLD)
    await world.archiver().tick()
    pair = ("support", trajectory("a").trajectory_id)
    await Erased(world.warehouse).add(named_id("erasure", "a"), {pair}, utc_now())
    await world.archiver().tick()
    assert (world.archived(), world.archived("turns"), world.raised) == (ids("b"), [], [])


async def test_a_damaged_file_raises_an_alert_until_it_is_gone(world: World) -> None:
    await world.add(trajectory("a"), age=OLD)
    archiver = world.archiver()
    await archiver.tick()
    (file,) = Archives(world.objects).files()
    put(world, file.uri.split("/", 3)[3], world.objects.get(file.uri)[:-9])
    await world.archiver().tick()
    assert file.uri in world.raised[-1].summary
    world.objects.remove(file.uri)
    await archiver.tick()
    assert world.archived() == []


async def test_labels_expire_by_role(world: World, shared_settings: SharedSettings) -> None:
    kept = {"*": DaysKept(labels=20), "kept": DaysKept(labels=900)}
    retention = Retention(world.warehouse, Settings(shared=shared_settings, retention=kept))
    await retention.tick()
    (before,) = await world.warehouse.rows(
        "SELECT engine_full AS ddl FROM system.tables WHERE database = currentDatabase() AND name = 'feedback'"
    )
    assert "multiIf(role = 'kept', 900, 20)" in before["ddl"]
    changed = list[str]()
    world.warehouse.command = lambda sql, *_: changed.append(sql)  # type: ignore[assignment]
    await retention.tick()
    assert changed == []
    del world.warehouse.command
    await world.add(feedback(1, "0"), age=NEW)
    await world.add(feedback(2, "1"), age=OLD)
    await world.warehouse.command("OPTIMIZE TABLE feedback FINAL")
    assert await world.hot("feedback") == [feedback(1, "0").trajectory_id]
    account = Account("RL_FEEDBACK", "collector", LIFE)
    ledger = Ledger(world.warehouse, {account.stream: ["feedback"]})
    await ledger.write(account, [Entry(2, STORED)], utc_now() - OLD)
    assert (await ledger.balance(account, 0, Gap(1, 2), utc_now() - timedelta(days=365))).absent == [Gap(2, 2)]
    await Retention(world.warehouse, Settings(shared=shared_settings)).tick()  # rows stay for longer from now on
    assert (await ledger.balance(account, 0, Gap(1, 2), utc_now() - timedelta(days=365))).absent == []
