"""The HTTP front of chDB, used by an unchanged clickhouse-connect."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

import clickhouse_connect
import httpx
import lz4.frame
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from ratchet.local.local_stack.clickhouse_access import memory_bound
from tests.support.servers import RunningServer

DIRECT: Any = {"trust_env": False, "verify": False, "timeout": 30}
TRICKY = [
    "",
    "it's",
    'say "hi"',
    "back\\slash",
    "tab\tnew\nline\r",
    "zażółć gęślą 漢字 🙂",
    "{x:String}",
    "%s %(a)s",
    "`tick`",
]


@pytest.fixture
def database(clickhouse: RunningServer) -> str:
    name = f"d{uuid.uuid4().hex[:10]}"
    client = clickhouse_connect.get_client(dsn=clickhouse.url)
    client.command(f"CREATE DATABASE {name}")
    client.close()
    return name


@pytest.fixture
def client(clickhouse: RunningServer, database: str) -> Iterator[Any]:
    client = clickhouse_connect.get_client(dsn=clickhouse.url, database=database, tz_mode="aware")
    yield client
    client.close()


@pytest.fixture
async def async_client(clickhouse: RunningServer, database: str) -> AsyncIterator[Any]:
    client = await clickhouse_connect.get_async_client(
        dsn=clickhouse.url, database=database, autogenerate_session_id=False
    )
    yield client
    await client.close()


COLUMNS = {
    "id": "UInt64",
    "at": "DateTime64(3, 'UTC')",
    "key": "UUID",
    "tokens": "Array(Int32)",
    "logprobs": "Array(Float64)",
    "score": "Float64",
    "maybe": "Nullable(Float64)",
    "role": "LowCardinality(String)",
    "text": "String",
    "labels": "Map(String, String)",
    "flag": "Bool",
}


def row(number: int) -> list[Any]:
    return [
        number,
        datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        uuid.UUID(int=number),
        [-1, 0, number],
        [0.1, -2.5e-8],
        number / 7,
        None if number % 2 else 0.5,
        f"role{number % 3}",
        TRICKY[number % len(TRICKY)],
        {"k'ey": "v\n", "": "x"},
        bool(number % 2),
    ]


def make_table(client: Any) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    client.command(
        f"CREATE TABLE facts ({columns}) ENGINE = ReplacingMergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )


def test_every_type_comes_back_as_it_went_in(client: Any) -> None:
    make_table(client)
    rows = [row(number) for number in range(len(TRICKY) * 2)]
    client.insert("facts", rows, column_names=list(COLUMNS))
    answered = client.query("SELECT * FROM facts ORDER BY id").result_rows
    assert [list(one) for one in answered] == rows


@pytest.mark.parametrize("compress", [False, "lz4"])
def test_a_large_insert_and_a_large_answer_in_every_compression(
    clickhouse: RunningServer, database: str, compress: bool | str
) -> None:
    client = clickhouse_connect.get_client(dsn=clickhouse.url, database=database, compress=compress, tz_mode="aware")
    make_table(client)
    rows = [row(number) for number in range(10_000)]
    client.insert("facts", rows, column_names=list(COLUMNS))
    answered = client.query("SELECT * FROM facts ORDER BY id").result_rows
    assert len(answered) == 10_000
    assert list(answered[9_999]) == rows[9_999]
    client.close()


def test_a_deduplication_token_inserts_once(client: Any) -> None:
    make_table(client)
    rows = [row(number) for number in range(10)]
    for token in ("one", "one", "it's", "it's"):
        client.insert("facts", rows, column_names=list(COLUMNS), settings={"insert_deduplication_token": token})
    assert client.command("SELECT count() FROM facts") == 20


@pytest.mark.parametrize("text", TRICKY)
def test_parameters_keep_their_text(client: Any, text: str) -> None:
    answer = client.query(
        "SELECT {text:String} AS text, {ids:Array(UInt64)} AS ids", parameters={"text": text, "ids": [1, 2]}
    )
    assert answer.result_rows == [(text, [1, 2])]


def test_parameters_too_long_for_a_url_travel_as_a_form(client: Any) -> None:
    keys = [f"{'k' * 40}{number}\n'" for number in range(3_000)]
    answer = client.query(
        "SELECT length({keys:Array(String)}) AS n, {keys:Array(String)} AS back", parameters={"keys": keys}
    )
    assert answer.result_rows == [(3_000, keys)]


def test_settings_hold_for_one_query_only(client: Any) -> None:
    asked = "SELECT value FROM system.settings WHERE name = 'max_block_size'"
    before = client.query(asked).result_rows
    assert client.query(asked, settings={"max_block_size": 77}).result_rows == [("77",)]
    assert client.query(asked).result_rows == before


def test_values_and_selects_insert_too(client: Any) -> None:
    client.command("CREATE TABLE t (id UInt64, text String) ENGINE = MergeTree ORDER BY id")
    client.command("INSERT INTO t VALUES (1, 'a FORMAT Native\n'), (2, 'b')")
    client.command("INSERT INTO t SELECT id + 10, text FROM t")
    client.raw_insert("t", ["id", "text"], '{"id": 5, "text": "c"}\n', fmt="JSONEachRow")
    assert client.query("SELECT id FROM t ORDER BY id").result_columns == [[1, 2, 5, 11, 12]]


def test_an_empty_answer_has_no_rows(client: Any) -> None:
    make_table(client)
    assert client.query("SELECT id, text FROM facts").result_rows == []
    assert client.query("SELECT id, text FROM facts LIMIT 0").column_names == ("id", "text")


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT nope", 47),
        ("SELECT * FROM no_such_table", 60),
        ("SELECT * FROM no_such_database.t", 81),
        ("SELECT throwIf(1)", 395),
        ("SELECT (", 62),
        ("SELECT 1 SETTINGS nonsense = 1", 115),
    ],
)
def test_errors_carry_the_code_of_clickhouse(client: Any, sql: str, code: int) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.query(sql)
    assert caught.value.code == code
    assert client.command("SELECT 1") == 1


def test_error_while_rows_are_written_is_reported_and_nothing_is_inserted(client: Any) -> None:
    """The server can read the rows and cannot store them, as on a full disk."""
    client.command("CREATE TABLE bounded (a UInt64, CONSTRAINT small CHECK a < 10) ENGINE = MergeTree ORDER BY a")
    with pytest.raises(DatabaseError, match="469"):
        client.insert("bounded", [[1], [100]], column_names=["a"])
    with pytest.raises(DatabaseError, match="469"):
        client.raw_insert("bounded", ["a"], b"100\n", fmt="TSV", settings={"max_threads": "1"})
    assert client.query("SELECT count() FROM bounded").result_rows == [(0,)]


def test_broken_data_is_refused_and_nothing_is_inserted(client: Any) -> None:
    make_table(client)
    with pytest.raises(DatabaseError):
        client.raw_insert("facts", ["id"], b"no native block", fmt="Native")
    assert client.command("SELECT count() FROM facts") == 0


async def test_concurrent_queries_and_inserts_do_not_mix(async_client: Any) -> None:
    await async_client.command("CREATE TABLE t (id UInt64, text String) ENGINE = MergeTree ORDER BY id")

    async def work(number: int) -> None:
        await async_client.insert("t", [[number, "x" * number]], column_names=["id", "text"])
        answer = await async_client.query("SELECT text FROM t WHERE id = {id:UInt64}", parameters={"id": number})
        assert answer.result_rows == [("x" * number,)]
        with pytest.raises(DatabaseError):
            await async_client.query("SELECT nope")

    await asyncio.gather(*(work(number) for number in range(60)))
    assert (await async_client.query("SELECT count() FROM t")).result_rows == [(60,)]


def rows_of(sizes: list[int]) -> list[list[Any]]:
    """A row of each size, its text different from every other's and hard to compress."""
    source = random.Random(len(sizes))
    return [[number, source.randbytes(size // 2).hex()] for number, size in enumerate(sizes)]


@pytest.mark.parametrize("compress", [False, "lz4"])
@pytest.mark.parametrize(
    "sizes",
    [[1_000] * 8_000, [20_000] * 500, [64_000] * 200, [500_000] * 12, [20_000_000, 10, 3_000_000, 10]],
    ids=["1 KB", "20 KB", "64 KB", "500 KB", "the first 20 MB"],
)
def test_every_row_of_an_insert_of_many_blocks_arrives(
    clickhouse: RunningServer, database: str, compress: bool | str, sizes: list[int]
) -> None:
    client = clickhouse_connect.get_client(dsn=clickhouse.url, database=database, compress=compress)
    client.command("CREATE TABLE t (id UInt64, text String) ENGINE = MergeTree ORDER BY id")
    rows = rows_of(sizes)
    summary = client.insert("t", rows, column_names=["id", "text"])
    assert summary.written_rows == len(rows)
    digests = client.query("SELECT id, lower(hex(MD5(text))) FROM t ORDER BY id").result_rows
    assert digests == [(number, md5(text.encode()).hexdigest()) for number, text in rows]
    client.close()


async def test_an_asynchronous_insert_reports_how_many_rows_it_wrote(async_client: Any) -> None:
    await async_client.command("CREATE TABLE t (id UInt64, text String) ENGINE = MergeTree ORDER BY id")
    summary = await async_client.insert("t", rows_of([100_000] * 100), column_names=["id", "text"])
    assert summary.written_rows == 100
    assert (await async_client.query("SELECT count() FROM t")).result_rows == [(100,)]


def test_an_insert_whose_body_is_cut_off_is_refused_whole(clickhouse: RunningServer, client: Any) -> None:
    client.command("CREATE TABLE t (id UInt64, text String) ENGINE = MergeTree ORDER BY id")
    frames = [bytes(lz4.frame.compress(f'{{"id": {number}, "text": "x"}}\n'.encode())) for number in range(3)]
    response = httpx.post(
        clickhouse.url,
        params={"query": "INSERT INTO t FORMAT JSONEachRow", "database": client.database},
        content=b"".join(frames)[:-1],
        headers={"Content-Encoding": "lz4"},
        **DIRECT,
    )
    assert response.headers["X-ClickHouse-Exception-Code"] == "271"
    assert client.command("SELECT count() FROM t") == 0


def ask(clickhouse: RunningServer, method: str, sql: str, **headers: str) -> httpx.Response:
    return httpx.request(method, clickhouse.url, params={"query": sql}, headers=headers, **DIRECT)


def test_get_reads_and_changes_nothing(clickhouse: RunningServer, database: str) -> None:
    assert ask(clickhouse, "GET", "SELECT 1").text == "1\n"
    assert ask(clickhouse, "POST", f"CREATE TABLE {database}.t (id UInt64) ENGINE = Memory").status_code == 200
    for sql in (
        f"CREATE TABLE {database}.u (id UInt64) ENGINE = Memory",
        f"INSERT INTO {database}.t VALUES (1)",
        f"WITH 1 AS x INSERT INTO {database}.t SELECT x",
        f"INSERT INTO {database}.t SETTINGS readonly = 0 VALUES (1)",
        "SET readonly = 0",
        f"DROP DATABASE {database}",
    ):
        for _ in range(2):
            refused = ask(clickhouse, "GET", sql)
            assert (refused.status_code, refused.headers["X-ClickHouse-Exception-Code"]) == (403, "164")
    counted = httpx.get(
        clickhouse.url, params={"query": "SELECT count() FROM t", "database": database, "max_threads": "1"}, **DIRECT
    )
    assert counted.text == "0\n"


def test_requests_without_the_password_and_from_a_browser_are_refused(clickhouse: RunningServer) -> None:
    bare = clickhouse.program.url
    for headers, url in (
        ({}, bare),
        ({"Origin": "https://evil.example"}, clickhouse.url),
        ({"Host": "evil.example"}, clickhouse.url),
        ({"X-ClickHouse-User": "ratchet", "X-ClickHouse-Key": "guess"}, bare),
    ):
        for method in ("GET", "POST"):
            response = httpx.request(method, url, params={"query": "SELECT 'secret'"}, headers=headers, **DIRECT)
            assert (response.status_code, response.headers["X-ClickHouse-Exception-Code"]) == (403, "516")
            assert "'secret'" not in response.text
    with pytest.raises(DatabaseError, match="516"):
        clickhouse_connect.get_client(dsn=bare)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM `/etc/hostname`",
        "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')",
        "SELECT * FROM s3('http://127.0.0.1:1/bucket/key', 'CSV', 'a String')",
        "SELECT * FROM remote('127.0.0.1:1', 'system.one')",
        "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
        "SELECT * FROM sqlite('/tmp/nothing.db', 't')",
        "INSERT INTO FUNCTION url('http://127.0.0.1:1/', 'CSV', 'a String') SELECT 'x'",
        "INSERT INTO FUNCTION s3('http://127.0.0.1:1/bucket/key', 'CSV', 'a String') SELECT 'x'",
        "CREATE TABLE x (a String) ENGINE = URL('http://127.0.0.1:1/', 'CSV')",
        "CREATE TEMPORARY TABLE x (a String) ENGINE = URL('http://127.0.0.1:1/', 'CSV')",
        "CREATE TABLE x AS url('http://127.0.0.1:1/', 'CSV', 'a String')",
        "CREATE DATABASE other ENGINE = MySQL('127.0.0.1:1', 'a', 'b', 'c')",
        "CREATE TABLE x (a UInt8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = s3,"
        " endpoint = 'http://127.0.0.1:1/bucket/x/', access_key_id = 'a', secret_access_key = 'b')",
        "CREATE DICTIONARY x (a UInt64) PRIMARY KEY a SOURCE(HTTP(url 'http://127.0.0.1:1/' format 'CSV'))"
        " LAYOUT(FLAT()) LIFETIME(1)",
        "CREATE FUNCTION x AS (y) -> y",
        "CREATE USER x",
        "GRANT SOURCES ON *.* TO default",
        "BACKUP DATABASE system TO Disk('default', 'x')",
        "SYSTEM SHUTDOWN",
    ],
)
def test_statements_reach_nothing_but_the_tables(client: Any, sql: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.command(sql)
    # 497 and 452: refused; 60 and 36: there is no such thing, or no disk of that kind
    assert caught.value.code in (497, 452, 60, 36, 62)
    assert client.command("SELECT 1") == 1


def test_the_engine_s_memory_has_a_bound(client: Any) -> None:
    bound = client.command("SELECT value FROM system.server_settings WHERE name = 'max_server_memory_usage'")
    assert int(bound) == memory_bound()


@pytest.mark.timeout(30)
def test_a_long_list_of_columns_without_a_format_is_parsed_in_time(client: Any) -> None:
    client.command(
        "CREATE TABLE t (id UInt64, " + ", ".join(f"event_id_{n} UInt8" for n in range(30)) + ") ENGINE = Memory"
    )
    columns = ", ".join(f"event_id_{number}" for number in range(30))
    client.command(f"INSERT INTO t (id, {columns}) SELECT 1{', 2' * 30}")
    assert client.command("SELECT id + event_id_29 FROM t") == 3
