"""ClickHouse: queries, idempotent inserts and numbered migrations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, DataError

from ratchet.kernel.errors import Rejected, WarehouseUnavailable
from ratchet.kernel.settings import KernelSettings

Row = dict[str, Any]
"""A row by column name; `Any` because each column has its own type."""

CONNECT_S = 5.0
"""How long a connection may take to come about."""

_STATEMENT_END = re.compile(r";\s*(?:\n|$)")
_SERVER_SAYS = re.compile(r"Code: (\d+)")
_PASSING_CODES = {"159", "202", "209", "210", "241", "243", "252", "425", "999"}
"""Time-outs, too many queries or parts, memory or disk short for now: worth another try."""


class Warehouse:
    """One connection pool to ClickHouse.

    Raises `WarehouseUnavailable` for passing faults and `Rejected` for a query or a value that cannot work.
    """

    def __init__(self, client: Any, database: str) -> None:
        # The asynchronous client is typed only in parts.
        self._client = client
        self._database = database
        self._columns: dict[str, list[Any]] = {}

    @classmethod
    async def connect(cls, settings: KernelSettings) -> Warehouse:
        """Connect, and create the database when it is missing."""
        with _classified():
            first: Any = await clickhouse_connect.get_async_client(
                dsn=settings.clickhouse_url,
                autogenerate_session_id=False,
                connect_timeout=CONNECT_S,
                send_receive_timeout=settings.clickhouse_timeout_s,
            )
            async with first:
                await first.command(f"CREATE DATABASE IF NOT EXISTS {settings.clickhouse_database}")
            client: Any = await clickhouse_connect.get_async_client(
                dsn=settings.clickhouse_url,
                database=settings.clickhouse_database,
                autogenerate_session_id=False,
                connect_timeout=CONNECT_S,
                send_receive_timeout=settings.clickhouse_timeout_s,
                # The default drops the zone of UTC columns, and a naive instant cannot be compared with any other.
                tz_mode="aware",
            )
        return cls(client, settings.clickhouse_database)

    async def close(self) -> None:
        """Close the pool."""
        await self._client.close()

    async def check(self) -> str | None:
        """Readiness: None while ClickHouse answers; raises `WarehouseUnavailable` otherwise."""
        await self.rows("SELECT 1")
        return None

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run a query; `{name:Type}` in `sql` takes its value from `parameters`."""
        with _classified():
            result = await self._client.query(sql, parameters=dict(parameters or {}))
        return list(result.named_results())

    async def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        with _classified():
            await self._client.command(sql)

    async def insert(self, table: str, rows: Sequence[Row], *, token: str) -> None:
        """Insert `rows` (equal keys) as one block. The same `token` twice inserts once, within the table's window."""
        if not rows:
            return
        names = list(rows[0])
        with _classified():
            await self._client.insert(
                table,
                [[row[name] for name in names] for row in rows],
                column_names=names,
                column_types=await self._types(table, names),
                settings={"insert_deduplication_token": token, "async_insert": 0},
            )

    async def migrate(self, folder: Path) -> list[str]:
        """Run the numbered `*.sql` files of `folder` that have not run yet; returns their names."""
        scripts = await asyncio.to_thread(_scripts, folder)
        await self.command(
            "CREATE TABLE IF NOT EXISTS migrations (name String, at DateTime DEFAULT now())"
            " ENGINE = ReplacingMergeTree ORDER BY name"
        )
        done = {row["name"] for row in await self.rows("SELECT name FROM migrations FINAL")}
        fresh = [name for name in scripts if name not in done]
        for name in fresh:
            for statement in statements(scripts[name]):
                await self.command(statement)
            await self.insert("migrations", [{"name": name}], token=name)
        return fresh

    async def _types(self, table: str, names: list[str]) -> list[Any]:
        if table not in self._columns:
            context = await self._client.create_insert_context(table, column_names=names)
            self._columns[table] = list(context.column_types)
        return self._columns[table]


def _scripts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("*.sql"))}


def statements(script: str) -> list[str]:
    """The statements of an SQL script, without comment lines."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in _STATEMENT_END.split(code) if part.strip()]


@contextmanager
def _classified() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise Rejected(f"ClickHouse cannot hold it: {error}") from error
    except DatabaseError as error:
        code = _SERVER_SAYS.search(str(error))
        if code and code[1] not in _PASSING_CODES:
            raise Rejected(f"ClickHouse refused: {error}") from error
        raise WarehouseUnavailable(f"ClickHouse is not available: {error}") from error
    except (ClickHouseError, aiohttp.ClientError, OSError) as error:
        raise WarehouseUnavailable(f"ClickHouse does not answer: {error}") from error
