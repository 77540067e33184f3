"""Runs are read together: as many queries for one ended trajectory as for a batch of them, and each in its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.core.contract import Trajectory, Turn, encode, named_id
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.trajectory_collector.clickhouse_facts import MOST, Facts, Most, RunKey
from ratchet.trajectory_collector.domain import Run, child_id
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.messages import AT, trajectory, turn
from tests.support.rewards import received
from tests.support.running import prepared_warehouse

TURNS = 3


class Counting(Warehouse):
    """A warehouse that counts its queries."""

    asked = 0

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        self.asked += 1
        return await super().rows(sql, parameters)


class Erasing(Warehouse):
    """A warehouse in which a run is erased between two queries."""

    erased: RunKey | None = None

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        rows = await super().rows(sql, parameters)
        if self.erased is not None:
            role, trajectory_id = self.erased
            where = {"role": role, "trajectory_id": trajectory_id}
            await self.command(
                "ALTER TABLE turns DELETE WHERE role = {role:String} AND trajectory_id = {trajectory_id:String}"
                " SETTINGS mutations_sync = 2",
                where,
            )
            self.erased = None
        return rows


def key(name: str, role: str = "support") -> RunKey:
    return role, named_id("trajectory", name)


async def stored(warehouse: Warehouse, *messages: Turn | Trajectory) -> None:
    """As the collector stores them."""
    for kind in (Turn, Trajectory):
        table = TABLES[kind.TOPIC]
        some = [received(one, number) for number, one in enumerate(messages, 1) if one.TOPIC == kind.TOPIC]
        rows = [row_of(table, one, "made/0", AT) | {"body": encode(one.message).decode()} for one in some]
        if rows:
            await Facts(warehouse).insert(table, rows)


async def read(warehouse: Warehouse, *keys: RunKey, most: Most = MOST) -> dict[RunKey, Run]:
    return {one: run async for one, run in Facts(warehouse, most).runs(keys)}


async def test_a_batch_of_runs_takes_as_many_queries_as_one(shared_settings: SharedSettings) -> None:
    """Else ends wait behind each other where ClickHouse is slow, and outcomes come too late for any canary."""
    names = [f"run {number}" for number in range(40)]
    async with prepared_warehouse(shared_settings) as plain:
        await stored(plain, *(turn(name, index) for name in names for index in range(TURNS)))
        warehouse = await Counting.connect(shared_settings)
        assert isinstance(warehouse, Counting)
        try:
            await read(warehouse, key(names[0]))
            for_one, warehouse.asked = warehouse.asked, 0
            runs = await read(warehouse, *map(key, names))
            assert warehouse.asked == for_one
        finally:
            await warehouse.close()
        assert {one: [turn.turn_id for turn in run.turns] for one, run in runs.items()} == {
            key(name): [named_id("turn", name, index) for index in range(TURNS)] for name in names
        }


async def test_each_run_of_a_batch_has_its_own_bounds_role_and_history(shared_settings: SharedSettings) -> None:
    """The long one is cut at its own place, and takes nothing from the others."""
    child = trajectory("child", trajectory_id=child_id("support", key("seen")[1], named_id("turn", "seen", 0)))
    async with prepared_warehouse(shared_settings) as warehouse:
        await stored(
            warehouse,
            *(turn("long", index) for index in range(5)),
            *(turn("short", index) for index in range(2)),
            *(turn("seen", index) for index in range(2)),
            turn("short", 7, role="planner"),
            trajectory("seen"),
            child,
        )
        runs = await read(warehouse, *map(key, ("long", "short", "seen", "gone")), most=Most(turns=2, bytes=10**9))
        seen = runs[key("seen")]
        assert {name: [turn.index for turn in runs[key(name)].turns] for name in ("long", "short", "seen", "gone")} == {
            "long": [0, 1],
            "short": [0, 1],
            "seen": [0, 1],
            "gone": [],
        }
        assert [runs[key(name)].left_out for name in ("long", "short", "seen", "gone")] == [3, 0, 0, 0]
        assert (seen.stored, seen.children) == (trajectory("seen"), [child])
        assert runs[key("long")].stored is None

        tiny = await read(warehouse, key("long"), key("short"), most=Most(turns=100, bytes=1))
        assert [(len(run.turns), run.left_out) for run in (tiny[key("long")], tiny[key("short")])] == [(1, 4), (1, 1)]


async def test_run_erased_while_it_is_read_is_empty_and_holds_up_no_other(
    shared_settings: SharedSettings,
) -> None:
    async with prepared_warehouse(shared_settings) as plain:
        await stored(plain, *(turn(name, index) for name in ("kept", "whole", "cut") for index in range(3)))
        warehouse = await Erasing.connect(shared_settings)
        assert isinstance(warehouse, Erasing)
        try:
            for name, most in (("whole", MOST), ("cut", Most(turns=2, bytes=10**9))):
                warehouse.erased = key(name)
                runs = await read(warehouse, key("kept"), key(name), most=most)
                assert runs[key(name)] == Run([])
                assert len(runs[key("kept")].turns) == min(3, most.turns)
        finally:
            await warehouse.close()


async def test_runs_that_do_not_fit_into_memory_together_are_all_read(shared_settings: SharedSettings) -> None:
    long = "answer " * 1_000_000
    async with prepared_warehouse(shared_settings) as warehouse:
        for name in ("one", "two", "three", "four"):
            await stored(warehouse, turn(name, response={"role": "assistant", "content": long}))
        runs = await read(warehouse, *map(key, ("one", "two", "three", "four", "none")))
        assert [len(runs[key(name)].turns) for name in ("one", "two", "three", "four", "none")] == [1, 1, 1, 1, 0]
