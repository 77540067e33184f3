"""The ClickHouse engine inside this process: connections to one data directory, one statement at a time on each.

chDB lets several connections of one process work side by side, each with its own settings and database (stressed with
six threads of inserts, queries, errors and DDL). A second process on the same directory is refused by a lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chdb  # pyright: ignore[reportMissingTypeStubs]

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import PRIVATE, write_whole
from ratchet.local.local_stack.clickhouse_access import engine_config, engine_users
from ratchet.local.local_stack.clickhouse_statement import ProtocolError, Statement
from ratchet.local.local_stack.storage_keys import CLICKHOUSE_KEY

OF_AN_INSERT = "insert_deduplication_token"
"""The setting that each insert has of its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave: its bytes, in the statement's output format, and what it cost."""

    body: bytes
    rows_read: int = 0
    """Read from tables, as ClickHouse counts them; not the rows of the answer."""
    bytes_read: int = 0
    rows_written: int = 0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class _Connection:
    # chDB's connection has no types.
    raw: Any
    settings: dict[str, str] = field(default_factory=dict[str, str])
    database: str = "default"

    def prepare(self, statement: Statement) -> None:
        """Bring settings and database to what this statement asks for."""
        if strange := next((name for name in statement.settings if not name.isidentifier()), None):
            raise ProtocolError(115, "UNKNOWN_SETTING", f"Unknown setting '{strange}'")
        lasting = _lasting(statement)
        stale = [f"{name} = DEFAULT" for name in self.settings if name not in lasting]
        fresh = [f"{name} = {_quoted(value)}" for name, value in lasting.items() if self.settings.get(name) != value]
        if stale or fresh:
            self.raw.query("SET " + ", ".join(stale + fresh), "Null")
            self.settings = lasting
        if statement.database is not None and statement.database != self.database:
            self.raw.query(f"USE {_quoted(statement.database, '`')}", "Null")
            self.database = statement.database

    def run(self, statement: Statement) -> Answer:
        if statement.insert_format is not None:
            return self._insert(statement)
        result = self.raw.query(statement.sql, statement.output_format, params=dict(statement.parameters) or None)
        return Answer(
            result.bytes() or b"",
            rows_read=result.storage_rows_read(),
            bytes_read=result.storage_bytes_read(),
            rows_written=result.rows_written(),
            elapsed_s=result.elapsed(),
        )

    def _insert(self, statement: Statement) -> Answer:
        """Insert the body, which chDB reads from a file in memory.

        Not by chDB's streaming insert: that one reports success for whatever fails when rows are written (a full disk,
        a constraint, too many parts).
        """
        if not statement.body:
            return Answer(b"")
        settings = statement.insert_settings
        if token := statement.settings.get(OF_AN_INSERT):
            settings = f"{settings}, " if settings else "SETTINGS "
            settings += f"{OF_AN_INSERT} = {_quoted(token)}"
        with _in_memory(statement.body) as path:
            source = f"FROM INFILE '{path}' COMPRESSION 'none'"
            result = self.raw.query(f"{statement.sql} {source} {settings} FORMAT {statement.insert_format}", "Null")
        return Answer(b"", rows_written=result.rows_written(), elapsed_s=result.elapsed())


@contextmanager
def _in_memory(body: bytes) -> Generator[str]:
    """The path of a file of this process that holds `body`, and takes no disk."""
    descriptor = os.memfd_create("insert")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(body)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class ChdbEngine:
    """Executes statements. Thread-safe; raises what chDB raises, with ClickHouse's error code in the text."""

    def __init__(self, data_dir: Path, memory_bytes: int) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._owner = (data_dir / "ratchet.lock").open("w")
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{data_dir} is in use by another process") from error
        self._address = _address(data_dir, memory_bytes)
        self._root = _Connection(self._connect())
        self._idle: dict[bool, list[_Connection]] = {True: [], False: []}
        """Free connections: those that only read, and the others."""
        self._mutex = threading.Lock()

    def execute(self, statement: Statement) -> Answer:
        """Run one statement to its end."""
        with self._connection(statement) as connection:
            connection.prepare(statement)
            return connection.run(statement)

    def close(self) -> None:
        """Close every connection; the engine writes out what it holds."""
        with self._mutex:
            connections = [*self._idle[True], *self._idle[False], self._root]
            self._idle = {True: [], False: []}
        for connection in connections:
            connection.raw.close()
        self._owner.close()

    @contextmanager
    def _connection(self, statement: Statement) -> Generator[_Connection]:
        """A connection for one statement; one that may carry something over is not used again."""
        with self._mutex:
            idle = self._idle[statement.read_only]
            lasting = _lasting(statement)  # to bring one to other settings is a statement too
            place = next((place for place, waiting in enumerate(idle) if waiting.settings == lasting), -1)
            connection = idle.pop(place) if idle else _Connection(self._connect(statement.read_only))
        clean = False
        try:
            yield connection
            clean = not statement.changes_connection
        finally:
            if clean:
                with self._mutex:
                    self._idle[statement.read_only].append(connection)
            else:
                connection.raw.close()

    def _connect(self, read_only: bool = False) -> Any:
        raw: Any = chdb.connect(self._address)  # it is typed only in parts
        if read_only:
            raw.query("SET readonly = 2", "Null")  # what reads may have settings of its own, but not this one
        return raw


def _address(data_dir: Path, memory_bytes: int) -> str:
    """Directory and configuration as chDB takes them; it looks for a configuration of its own where none is named."""
    keys = sorted(name for name in os.environ if name.startswith(CLICKHOUSE_KEY))
    config, users = data_dir / "ratchet-config.xml", data_dir / "ratchet-users.xml"
    write_whole(users, engine_users().encode(), mode=PRIVATE, durable=False)
    write_whole(config, engine_config(str(users.resolve()), memory_bytes, keys).encode(), mode=PRIVATE, durable=False)
    return f"{data_dir}?config-file={quote(str(config.resolve()))}"


def _lasting(statement: Statement) -> dict[str, str]:
    """The settings that a connection has for a statement; the others stand in it."""
    inserts = statement.insert_format is not None
    return {name: value for name, value in statement.settings.items() if not inserts or name != OF_AN_INSERT}


def _quoted(text: str, mark: str = "'") -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark
