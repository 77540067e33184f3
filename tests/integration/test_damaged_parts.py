"""Parts of the embedded ClickHouse that are damaged, as a full disk leaves them: a new start goes on without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from ratchet.local.local_stack.clickhouse import DamagedParts
from ratchet.local.local_stack.clickhouse_access import SOURCES_KEPT_S
from tests.support.servers import RunningServer, running_clickhouse


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_clickhouse(tmp_path) as server:
        yield server


@contextmanager
def connected(server: RunningServer) -> Iterator[Any]:
    client = clickhouse_connect.get_client(dsn=server.url)
    try:
        yield client
    finally:
        client.close()


def sum_of(server: RunningServer, table: str) -> int:
    with connected(server) as client:
        return client.query(f"SELECT sum(n) FROM {table}").result_rows[0][0]


def fill(server: RunningServer, table: str, parts: int, more: str = "") -> None:
    """A table of so many parts, each with the numbers below 1,000."""
    with connected(server) as client:
        client.command("CREATE DATABASE facts")
        client.command(f"CREATE TABLE {table} (n UInt64{more}) ENGINE = MergeTree ORDER BY n")
        for _ in range(parts):
            client.insert(table, [[n] for n in range(1000)], column_names=["n"])
        if parts > 1:
            client.command(f"OPTIMIZE TABLE {table} FINAL")


def emptied(folder: Path) -> None:
    """What chDB leaves of a part when the disk is full while it writes: its files, without content."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(b"")


def test_damaged_merged_part_gives_way_to_its_sources_at_next_start(server: RunningServer, tmp_path: Path) -> None:
    fill(server, "facts.merged", parts=2)
    with connected(server) as client:
        kept = client.query("SELECT value FROM system.merge_tree_settings WHERE name = 'old_parts_lifetime'")
    assert kept.result_rows == [(str(SOURCES_KEPT_S),)]
    server.kill()
    (merged,) = tmp_path.rglob("all_1_2_1")
    emptied(merged)
    server.start()
    assert sum_of(server, "facts.merged") == 2 * sum(range(1000))


def test_part_without_an_index_asks_for_a_start_although_no_error_names_it(
    server: RunningServer, tmp_path: Path
) -> None:
    fill(server, "facts.merged", parts=2, more=", m UInt64 DEFAULT n, PROJECTION by_m (SELECT m ORDER BY m)")
    (merged,) = tmp_path.rglob("all_1_2_1")
    emptied(merged)
    with pytest.raises(DatabaseError, match="CANNOT_READ_ALL_DATA") as failed, connected(server) as client:
        client.query("SELECT m FROM facts.merged WHERE m BETWEEN 3 AND 50")
    assert "while reading from part" not in str(failed.value)
    answer = httpx.get(f"http://{server.url.rpartition('@')[2]}/ping")
    assert (answer.status_code, str(merged) in answer.text) == (503, True), answer.text
    server.kill()
    server.start()
    assert sum_of(server, "facts.merged") == 2 * sum(range(1000))


def test_part_that_cannot_be_read_asks_for_one_start(server: RunningServer, tmp_path: Path) -> None:
    fill(server, "facts.single", parts=1)
    server.kill()
    (part,) = tmp_path.rglob("all_1_1_0")
    (part / "data.bin").write_bytes((part / "data.bin").read_bytes()[::-1])  # of the right size: no start notices
    server.start()
    ping = f"http://{server.url.rpartition('@')[2]}/ping"
    with pytest.raises(DatabaseError, match="while reading from part"):
        sum_of(server, "facts.single")
    answer = httpx.get(ping)
    assert (answer.status_code, str(part) in answer.text) == (503, True), answer.text
    server.kill()
    server.start()
    with pytest.raises(DatabaseError):  # another start would not help
        sum_of(server, "facts.single")
    assert httpx.get(ping).status_code == 200


def test_part_that_is_being_written_is_no_damaged_one(tmp_path: Path) -> None:
    for part in ("tmp_insert_all_7_7_0", "tmp_merge_all_1_7_1"):
        (folder := tmp_path / "store" / "6dc" / "6dc35fc8" / part).mkdir(parents=True)
        (folder / "checksums.txt").touch()
    parts = DamagedParts(tmp_path)
    parts.note("Code: 33. DB::Exception: Cannot read all data: the body of an insert ended too early")
    assert parts.unfit is None
