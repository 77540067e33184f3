"""ClickHouse: queries, idempotent inserts and the tables of the schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import clickhouse_connect
import msgspec
from clickhouse_connect.driver import options
from clickhouse_connect.driver.exceptions import ClickHouseError as DriverError, DatabaseError, DataError

from ratchet.core.errors import ConfigError, Rejected, WarehouseTooSlow, WarehouseUnavailable
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.schema import replicated, schema_digest, schema_statements, upgrade_statements

# The driver looks whether rows are a data frame, and for that imports pandas where it is installed: 2 s and 106 MB.
setattr(options, "pd", None)  # noqa: B010 - a lazy attribute, which no type checker knows

Row = dict[str, Any]
"""A row by column name; `Any` because each column has its own type."""

CONNECT_S = 5.0
"""The deadline for a new connection."""

QUORUM: Mapping[str, Any] = {"insert_quorum": "auto", "insert_quorum_parallel": 0, "select_sequential_consistency": 1}
"""On replicas: what was written is on most of them, and read from one that has it all. Others answer with an error."""

_ERROR_CODE = re.compile(r"Code: (\d+)")
VALUE_CODES = frozenset({"6", "27", "38", "41", "53", "69", "70", "72", "131", "457", "691"})
"""ClickHouse's codes for a value that it cannot hold or read: text that is not a number, date or enum, a value out of
bounds, of a wrong type, or too large. Every other code, also an unknown one, is the warehouse's fault: a table that is
detached or missing, a disk, a restart, a password, a body that was cut off on its way."""

TOO_SLOW = "159"
"""The code for a query that ran for longer than its `max_execution_time`."""


class Texts:
    """Some texts, or pairs, as the parameter of `one_of` or `one_pair_of`. No `str`: the driver looks at every
    character of one, in Python."""

    def __init__(self, values: Iterable[str] | Iterable[tuple[str, str]]) -> None:
        self._json = msgspec.json.encode(sorted(set(values))).decode()

    def __str__(self) -> str:
        return self._json.replace("\\", "\\\\")


def one_of(column: str, parameter: str) -> str:
    """The condition that `column` holds one of some texts; `parameter` is the name of the query's, `Texts`.

    An array as a parameter costs both sides five times as much: it is parsed as an expression.
    """
    return f"{column} IN JSONExtract({{{parameter}:String}}, 'Array(String)')"


def one_pair_of(columns: str, parameter: str) -> str:
    """The condition that two columns, with a comma between, hold one of some pairs of texts; see `one_of`."""
    return f"({columns}) IN JSONExtract({{{parameter}:String}}, 'Array(Tuple(String, String))')"


class Warehouse:
    """One connection pool to ClickHouse.

    Raises `Rejected` for a value that ClickHouse can never take (`VALUE_CODES`), `WarehouseTooSlow` where a query's own
    limit of time was over, and `WarehouseUnavailable` for every other fault: a fault of the warehouse must never look
    like one of a message.
    """

    def __init__(self, client: Any, database: str, cluster: str | None) -> None:
        # The asynchronous client is typed only in parts.
        self._client = client
        self._database = database
        self._cluster = cluster
        self._columns: dict[tuple[str, ...], list[Any]] = {}

    @classmethod
    async def connect(cls, settings: SharedSettings) -> Warehouse:
        """Connect, and create the database when it is missing."""
        secure = urlsplit(settings.clickhouse_url).scheme == "https"  # the client looks at the port alone
        with _classified():
            client: Any = await clickhouse_connect.get_async_client(
                dsn=settings.clickhouse_url,
                secure=secure,
                autogenerate_session_id=False,
                connect_timeout=CONNECT_S,
                send_receive_timeout=settings.clickhouse_timeout_s,
                # The default drops the zone of UTC columns, and a naive instant cannot be compared with any other.
                tz_mode="aware",
                settings=dict(QUORUM) if settings.clickhouse_cluster else None,
            )
            try:
                made = f"CREATE DATABASE IF NOT EXISTS {settings.clickhouse_database}"
                await client.command(replicated(made, settings.clickhouse_cluster))
            except BaseException:
                await client.close()
                raise
            client.database = settings.clickhouse_database
        return cls(client, settings.clickhouse_database, settings.clickhouse_cluster)

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

    async def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns nothing; `{name:Type}` in `sql` takes its value from `parameters`."""
        with _classified():
            await self._client.command(sql, parameters=dict(parameters or {}))

    async def insert(self, table: str, rows: Sequence[Row], *, token: str | None) -> None:
        """Insert `rows` (equal keys) as one block. The same `token` twice inserts once, within the table's window.

        Without a token the block is always written. Raises `WarehouseUnavailable` also when the
        server wrote another number of rows than it was sent (it counts a repeated block as written).
        """
        if not rows:
            return
        names = list(rows[0])
        key = (table, *names)
        with _classified():
            if key not in self._columns:
                context = await self._client.create_insert_context(table, column_names=names)
                self._columns[key] = list(context.column_types)
            summary = await self._client.insert(
                table,
                [[row[name] for row in rows] for name in names],
                column_names=names,
                column_types=self._columns[key],
                column_oriented=True,
                settings={**({"insert_deduplication_token": token} if token else {}), "async_insert": 0},
            )
        if summary.written_rows != len(rows):
            raise WarehouseUnavailable(f"ClickHouse wrote {summary.written_rows} of {len(rows)} rows into {table}")

    async def make_tables(self, steps: Path | None = None) -> None:
        """Make the tables and views that are missing, those of an earlier schema after its upgrade (`steps`).

        Raises `ConfigError` for those of a schema that no step leads from.
        """
        own, stored = schema_digest(), await self.stored_schemas()
        upgrade = upgrade_statements(stored, steps)
        if upgrade is None:
            known = " and ".join(sorted(stored - {own}))
            raise ConfigError(
                f"the tables in the database {self._database} are those of another version of Ratchet (schema"
                f" {known or 'unknown'}, this version's is {own}), and deploy/clickhouse/upgrades has no step from"
                " there: use that version, or an empty database"
            )
        # The digest first: what a start that was cut off has made is then known to be ours, and refused by others.
        schemas = "CREATE TABLE IF NOT EXISTS schemas (digest String) ENGINE = ReplacingMergeTree ORDER BY digest"
        await self.command(replicated(schemas, self._cluster))
        if own not in stored:
            await self.insert("schemas", [{"digest": own}], token=None)
        for statement in upgrade:
            await self.command(replicated(statement, self._cluster))
        names = await self._table_names()
        for name, statement in schema_statements().items():
            if name not in names:
                await self.command(replicated(statement, self._cluster))
        if earlier := stored - {own}:  # not before: an upgrade that was cut off is done again, whole
            forget = "DELETE FROM schemas WHERE has({earlier:Array(String)}, digest)"
            await self.command(forget, {"earlier": sorted(earlier)})

    async def stored_schemas(self) -> set[str]:
        """The digest of the schema that made the tables, and of those that upgrades which were cut off led to.

        Empty without tables; with an empty digest where none was noted.
        """
        names = await self._table_names()
        noted = await self.rows("SELECT digest FROM schemas") if "schemas" in names else []
        return {row["digest"] for row in noted} or ({""} if "trajectories" in names else set())

    async def _table_names(self) -> set[str]:
        tables = await self.rows(
            "SELECT name FROM system.tables WHERE database = {name:String}", {"name": self._database}
        )
        return {row["name"] for row in tables}


@contextmanager
def _classified() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise Rejected(f"ClickHouse cannot hold it: {error}") from error
    except DatabaseError as error:
        code = _ERROR_CODE.search(str(error))
        if code and code[1] in VALUE_CODES:
            raise Rejected(f"ClickHouse refused: {error}") from error
        if code and code[1] == TOO_SLOW:
            raise WarehouseTooSlow(f"ClickHouse stopped a query that took too long: {error}") from error
        raise WarehouseUnavailable(f"ClickHouse is not available: {error}") from error
    except (DriverError, aiohttp.ClientError, OSError) as error:
        raise WarehouseUnavailable(f"ClickHouse does not answer: {error}") from error
