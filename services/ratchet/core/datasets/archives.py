"""Trajectories and turns that left ClickHouse, as Parquet files in the object store: a folder by table, role and day.

    archive/trajectories/role=support/day=2026-10-30/<sha256>.parquet

A file is named by its digest and never changed: one without some trajectories is written before the old one goes. Both
may be there for a moment, so a reader counts an event (`trajectory_id`, `event_id`) once, as it was stored last.
Synchronous: asynchronous callers use a thread.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.bus.message import Value
from ratchet.core.contract.snapshot import ParquetFile
from ratchet.core.datasets.parquet import RowWriter, count_rows, read_page, read_rows
from ratchet.core.datasets.s3_snapshots import RemoteRows
from ratchet.core.errors import DigestMismatch, Rejected

if TYPE_CHECKING:
    from ratchet.core.stores.listing import StoredObject
    from ratchet.core.stores.objects import Objects

PREFIX = "archive"
ARCHIVED = ("turns", "trajectories")
"""The tables whose rows are archived."""
ROWS_AT_ONCE = 500
"""Of a file that is written anew, in one row group."""
_KEY = re.compile(
    rf"s3://[^/]+/{PREFIX}/({'|'.join(ARCHIVED)})/role=([a-z0-9_-]+)/day=([0-9-]{{10}})/([0-9a-f]{{64}})\.parquet"
)

Person = Literal["user_ref", "session_id", "agent_id"]
"""What trajectories of a person, a session or an agent have in common."""
EventKey = tuple[str, str, datetime]
"""Trajectory, event, and when it was stored."""


class ArchivedRow(Value, frozen=True, kw_only=True, omit_defaults=False):
    """A row of a table, as its file holds it."""

    trajectory_id: str
    event_id: str
    generation: str
    """Of the stream that its message came from."""
    sequence: int
    correlation_id: str
    causation_id: str | None
    user_ref: str | None
    session_id: str | None
    agent_id: str | None
    at: datetime
    """When the trajectory ended, or the call was made."""
    stored_at: datetime
    body: str
    """The whole message, JSON."""

    @property
    def key(self) -> EventKey:
        """What tells one version of one event from all others."""
        return self.trajectory_id, self.event_id, self.stored_at


@dataclass(frozen=True, slots=True)
class Folder:
    """The rows of a table and a role that were stored on one day."""

    table: str
    role: str
    day: date
    """In UTC."""

    @property
    def prefix(self) -> str:
        """Of the keys of its files."""
        return f"{PREFIX}/{self.table}/role={self.role}/day={self.day}"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive."""

    folder: Folder
    uri: str
    sha256: str
    size: int
    """Bytes."""


class Archives:
    """Lists, reads, writes and removes files. Raises as `Objects` does, and `Rejected` for what is no such file."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def files(self, *, table: str = "", folder: Folder | None = None) -> list[ArchiveFile]:
        """Those of a folder, a table, or all; the oldest day first."""
        prefix = f"{folder.prefix}/" if folder else f"{PREFIX}/{table}/" if table else f"{PREFIX}/"
        files = [file for stored in self._objects.objects(prefix) if (file := _file(stored))]
        return sorted(files, key=lambda file: (file.folder.day, file.uri))

    def rows(self, file: ArchiveFile) -> Iterator[ArchivedRow]:
        """The rows of a file, verified by its digest."""
        with self._verified(file) as path:
            yield from read_rows(path, ArchivedRow)

    def keys(self, file: ArchiveFile) -> list[tuple[EventKey, str, int]]:
        """Each row's key, generation and sequence, of the whole file, verified by its digest."""
        columns = ("trajectory_id", "event_id", "stored_at", "generation", "sequence")
        with self._verified(file) as path, path.open("rb") as stored:
            rows = [tuple(row.values()) for row in read_page(stored, columns, 0, sys.maxsize)]
        return [((trajectory, event, at), generation, sequence) for trajectory, event, at, generation, sequence in rows]

    def count(self, file: ArchiveFile) -> int:
        """The number of rows; 0 for a file that is damaged."""
        try:
            return len(self._columns(file, ("trajectory_id",)))
        except Rejected:
            return 0

    def ids_of(self, who: Person, ref: str) -> set[tuple[str, str]]:
        """Role and id of each archived trajectory, and of those of archived turns, of a person, session or agent."""
        return {
            (file.folder.role, row["trajectory_id"])
            for file in self.files()
            for row in self._columns(file, ("trajectory_id", who))
            if row[who] == ref
        }

    def writer(self, folder: Folder) -> ArchiveWriter:
        """For a new file of a folder."""
        return ArchiveWriter(self._objects, folder)

    def erase(self, ids: Collection[tuple[str, str]]) -> int:
        """Remove all rows of trajectories, by role and id; the number of rows. Again, it changes nothing.

        Raises `DigestMismatch` where a file cannot be written anew: then the old one is still there.
        """
        erased = 0
        for file in self.files():
            own = {trajectory_id for role, trajectory_id in ids if role == file.folder.role}
            held = self._columns(file, ("trajectory_id",)) if own else []
            if number := sum(row["trajectory_id"] in own for row in held):
                if number < len(held):
                    self._rewrite(file, own)
                self.remove(file)
                erased += number
        return erased

    def remove(self, file: ArchiveFile) -> None:
        """Remove a file for good."""
        self._objects.remove(file.uri)

    def _rewrite(self, file: ArchiveFile, without: Collection[str]) -> None:
        with self.writer(file.folder) as writer:
            rows = (row for row in self.rows(file) if row.trajectory_id not in without)
            while part := list(islice(rows, ROWS_AT_ONCE)):
                writer.add(part)
            writer.store()

    @contextmanager
    def _verified(self, file: ArchiveFile) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="ratchet-archive-") as directory:
            path = Path(directory) / "rows.parquet"
            self._objects.get_file(file.uri, path, file.sha256, file.size)
            yield path

    def _columns(self, file: ArchiveFile, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of all rows; of the file only what that takes is read. `Any`: each column has its own type."""
        stored = ParquetFile(uri=file.uri, sha256=file.sha256, size=file.size)
        return read_page(RemoteRows(self._objects, stored), columns, 0, sys.maxsize)


def _file(stored: StoredObject) -> ArchiveFile | None:
    """The file of the archive that an object is; None for an object of others."""
    match = _KEY.fullmatch(stored.uri)
    if match is None:
        return None
    table, role, day, digest = match.groups()
    try:
        return ArchiveFile(Folder(table, role, date.fromisoformat(day)), stored.uri, digest, stored.size)
    except ValueError:  # of no day
        return None


class ArchiveWriter:
    """Writes rows to a local file, then stores it. For use in a `with` block."""

    def __init__(self, objects: Objects, folder: Folder) -> None:
        self._objects = objects
        self._folder = folder
        self._directory = tempfile.TemporaryDirectory(prefix="ratchet-archive-")
        self._path = Path(self._directory.name) / "rows.parquet"
        self._writer = RowWriter(self._path, ArchivedRow)
        self.rows = self.size = 0
        """Written so far, and the bytes of their bodies."""

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._directory.cleanup()

    def add(self, rows: Sequence[ArchivedRow]) -> None:
        """Append rows as one row group."""
        if rows:
            self._writer.add(rows)
            self.rows += len(rows)
            self.size += sum(len(row.body) for row in rows)

    def store(self) -> ArchiveFile:
        """Store the file, read it back, and compare digest and number of rows. Equal rows make an equal file.

        Raises `DigestMismatch` where the store holds another one than it was given.
        """
        self._writer.close()
        ref = self._objects.put_file(self._path, self._folder.prefix, ".parquet")
        self._path.unlink()  # there may be no room for both
        self._objects.get_file(ref.uri, self._path, ref.sha256, ref.size)
        if (stored := count_rows(self._path)) != self.rows:
            raise DigestMismatch(f"{ref.uri} holds {stored} rows in the place of {self.rows}")
        return ArchiveFile(self._folder, ref.uri, ref.sha256, ref.size)
