"""Rows come back from the warehouse as they were inserted, and its errors are classified."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ratchet.core.errors import ConfigError, Rejected, WarehouseTooSlow, WarehouseUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.schema import schema_digest
from ratchet.core.stores.trajectory_search import WITHIN_TIME
from ratchet.core.stores.warehouse import VALUE_CODES, Texts, Warehouse, one_of
from tests.support.running import prepared_warehouse


async def test_instants_come_back_in_utc_with_their_time_zone(shared_settings: SharedSettings) -> None:
    warehouse = await Warehouse.connect(shared_settings)
    try:
        await warehouse.command(
            "CREATE TABLE instants (n UInt8, at DateTime64(3, 'UTC'), maybe Nullable(DateTime64(3, 'UTC')))"
            " ENGINE = MergeTree ORDER BY n"
        )
        noon = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)
        elsewhere = noon.astimezone(timezone(timedelta(hours=5)))
        rows = [
            {"n": 1, "at": noon, "maybe": None},
            {"n": 2, "at": elsewhere, "maybe": elsewhere},
        ]
        await warehouse.insert("instants", rows, token="instants")
        first, second = await warehouse.rows("SELECT at, maybe FROM instants ORDER BY n")
        assert (first["at"], first["maybe"]) == (noon, None)
        assert (second["at"], second["maybe"]) == (noon, noon)
        assert {one.utcoffset() for one in (first["at"], second["at"], second["maybe"])} == {timedelta(0)}
    finally:
        await warehouse.close()


async def test_a_connection_that_cannot_be_made_leaves_no_session_open(shared_settings: SharedSettings) -> None:
    unclosed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unclosed.append(context["message"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(WarehouseUnavailable):
            await Warehouse.connect(shared_settings.model_copy(update={"clickhouse_database": "two words"}))
        gc.collect()
    assert unclosed == []


VALUES = {
    "6": "SELECT toUInt8('x')",
    "27": "SELECT * FROM format(JSONEachRow, 'n UInt8', '{\"n\": \"x\"}')",
    "38": "SELECT toDate('x')",
    "41": "SELECT toDateTime('x')",
    "53": "SELECT 1 WHERE toUInt8(1) IN ('x')",
    "69": "SELECT range(100000000000)",
    "70": "SELECT CAST(NULL AS UInt8)",
    "72": "SELECT toUInt8('-')",
    "131": "SELECT repeat('x', 100000000000)",
    "457": "SELECT {n:UInt8}",
    "691": "SELECT CAST('x' AS Enum8('a' = 1))",
}
"""A statement for every code that is a value's fault."""
FAULTS = {
    "60": "SELECT 1 FROM no_such_table",
    "16": "INSERT INTO kept (no_such_column) VALUES (1)",
    "62": "SELECT FROM WHERE",
    "158": "SELECT number FROM numbers(1000000) SETTINGS max_rows_to_read = 10",
    "164": "CREATE TABLE other (n UInt8) ENGINE = Memory SETTINGS readonly = 1",
    "241": "SELECT groupArray(number) FROM numbers(10000000) SETTINGS max_memory_usage = 1000000",
    "395": "SELECT throwIf(1)",
}
"""A statement for some of all the others."""


def test_every_code_that_is_the_values_fault_is_provoked_here() -> None:
    assert set(VALUES) == VALUE_CODES


@pytest.mark.parametrize("code", VALUES)
async def test_a_value_that_clickhouse_can_never_take_is_refused(shared_settings: SharedSettings, code: str) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        with pytest.raises(Rejected, match=f"Code: {code}\\."):
            await warehouse.rows(VALUES[code], {"n": "x"})


@pytest.mark.parametrize("code", FAULTS)
async def test_every_other_fault_is_the_warehouses(shared_settings: SharedSettings, code: str) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("CREATE TABLE kept (n UInt8) ENGINE = MergeTree ORDER BY n")
        with pytest.raises(WarehouseUnavailable, match=f"Code: {code}\\."):
            await warehouse.command(FAULTS[code])


async def test_a_query_that_outlives_its_own_limit_is_too_slow(shared_settings: SharedSettings) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        with pytest.raises(WarehouseTooSlow, match="took too long"):
            await warehouse.rows("SELECT max(sipHash64(number)) FROM numbers(1000000000000)" + WITHIN_TIME)


async def test_rows_of_all_sizes_are_written_whole(shared_settings: SharedSettings) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("CREATE TABLE texts (n UInt32, body String) ENGINE = MergeTree ORDER BY n")
        noise = os.urandom(20_000_000).hex()[:20_000_000]
        sizes = [1_000] * 300 + [50_000] * 60 + [500_000] * 8 + [20_000_000]
        rows = [{"n": n, "body": noise[:size]} for n, size in enumerate(sizes)]
        await warehouse.insert("texts", rows, token="all sizes")
        kept = await warehouse.rows("SELECT count() AS n, sum(length(body)) AS size FROM texts")
        assert (kept[0]["n"], kept[0]["size"]) == (len(sizes), sum(sizes))


async def test_texts_of_any_kind_match_their_rows(shared_settings: SharedSettings) -> None:
    plain, quoted = ["a", "", "a,b", "[]", "ü🙂"], ["it's", '"a"', "\\n", "tab\t", "line\n", "\x00\x1f"]
    names = plain + quoted
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("CREATE TABLE names (name String) ENGINE = MergeTree ORDER BY name")
        await warehouse.insert("names", [{"name": name} for name in [*names, "other"]], token=None)
        for asked in ([], *([name] for name in names), names):
            rows = await warehouse.rows(f"SELECT name FROM names WHERE {one_of('name', 'n')}", {"n": Texts(asked)})
            assert sorted(row["name"] for row in rows) == sorted(asked)


async def test_a_server_that_wrote_fewer_rows_than_it_was_sent_is_at_fault(shared_settings: SharedSettings) -> None:
    """A null table with a materialized view that fails to write counts otherwise than what was sent."""
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("CREATE TABLE source (n UInt32) ENGINE = Null")
        await warehouse.command("CREATE TABLE target (n UInt32) ENGINE = MergeTree ORDER BY n")
        await warehouse.command("CREATE MATERIALIZED VIEW half TO target AS SELECT n FROM source WHERE n % 2 = 0")
        with pytest.raises(WarehouseUnavailable, match=r"wrote .* of 10 rows"):
            await warehouse.insert("source", [{"n": n} for n in range(10)], token="counted otherwise")


@pytest.mark.parametrize("noted", ["another", None])
async def test_make_tables_refuses_tables_of_another_schema(shared_settings: SharedSettings, noted: str | None) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("TRUNCATE TABLE schemas")
        if noted:
            await warehouse.insert("schemas", [{"digest": noted}], token=None)
        with pytest.raises(ConfigError, match=rf"\(schema {noted or 'unknown'}, this version's is {schema_digest()}\)"):
            await warehouse.make_tables()


async def test_make_tables_again_makes_what_is_missing(shared_settings: SharedSettings) -> None:
    async with prepared_warehouse(shared_settings) as warehouse:
        await warehouse.command("DROP TABLE pair_skips")
        await warehouse.make_tables()
        assert await warehouse.rows("SELECT count() AS n FROM pair_skips") == [{"n": 0}]
        assert await warehouse.stored_schemas() == {schema_digest()}
