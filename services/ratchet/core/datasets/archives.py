"""Trajectories and turns that left ClickHouse, as Parquet files in the object store: a folder by table, role and day.

    archive/trajectories/role=support/day=2026-10-30/<sha256>.parquet

A file is named by its digest and never changed: one without some trajectories is written before the old one goes. Both
may be there for a moment, so a reader counts an event (`trajectory_id`, `event_id`) once, as it was stored last.
Synchronous: asynchronous callers use a thread.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog

from ratchet.bus.message import Value
from ratchet.core.contract.snapshot import ParquetFile
from ratchet.core.datasets.parquet import RowWriter, count_rows, read_page, read_rows
from ratchet.core.datasets.s3_snapshots import RemoteRows
from ratchet.core.errors import DigestMismatch, NotFound, ObjectsUnavailable, Rejected

if TYPE_CHECKING:
    from ratchet.core.stores.listing import StoredObject
    from ratchet.core.stores.objects import Objects

log = structlog.get_logger()

PREFIX = "archive"
ARCHIVED = ("turns", "trajectories")
"""The tables whose rows are archived."""
ROWS_AT_ONCE = 500
"""Of a file that is written anew, in one row group."""
BUFFER_BYTES = 1 << 16
"""Fetched at a time: about what the columns of a row group take beside its bodies."""
_KEY = re.compile(
    rf"s3://[^/]+/{PREFIX}/({'|'.join(ARCHIVED)})/role=([a-z0-9_-]+)/day=([0-9-]{{10}})/([0-9a-f]{{64}})\.parquet"
)

Person = Literal["user_ref", "session_id", "agent_id", "trajectory_id"]
"""What trajectories of a person, a session or an agent have in common; or one of them alone."""
NAMES = ("trajectory_id", "user_ref", "session_id", "agent_id", "parent_trajectory_id", "recorded_as")
"""The columns that an erasure finds rows by."""
Pairs = set[tuple[str, str]]
"""Roles and ids of trajectories."""
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
    parent_trajectory_id: str | None = None
    recorded_as: str | None = None
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


class Erasing(NamedTuple):
    """What became of rows that were to be removed."""

    rows: int
    """How many are gone."""
    beside: Pairs
    """Whose rows the files hold that were written anew: another erasure may have removed them meanwhile."""
    damaged: list[str]
    """Files that cannot be read, or be written anew: they are as they were."""


class Archives:
    """Lists, reads, writes and removes files. Raises as `Objects` does, and `Rejected` for what is no such file."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def files(self, *, table: str = "", folder: Folder | None = None) -> list[ArchiveFile]:
        """Those of a folder, a table, or all; the oldest day first."""
        prefix = f"{folder.prefix}/" if folder else f"{PREFIX}/{table}/" if table else f"{PREFIX}/"
        files = list[ArchiveFile]()
        with suppress(NotFound):  # there is no bucket before the first object
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

    def pairs(self, file: ArchiveFile) -> Pairs:
        """Role and id of each trajectory that has rows in a file."""
        return {(file.folder.role, row["trajectory_id"]) for row in self._columns(file, ("trajectory_id",))}

    def ids_of(self, who: Person, ref: str, known: Collection[tuple[str, str]] = ()) -> Pairs:
        """Role and id of each archived trajectory of a person, session or agent, and what belongs to its run or that
        of `known` ones: other conversations, sub-agents. `known` ones are left out, and files that are damaged.
        """
        theirs, size, table = {*known}, -1, ""

        def look(file: ArchiveFile) -> None:
            for row in self._columns(file, NAMES):
                role = file.folder.role
                own = [(role, name) for name in (row["trajectory_id"], row["recorded_as"]) if name]
                if row[who] == ref or not theirs.isdisjoint([*own, (role, row["parent_trajectory_id"])]):
                    theirs.update(own)

        while size != len(theirs):
            size = len(theirs)
            self._visit(look, table=table)
            table = "trajectories"  # turns name no run
        return theirs.difference(known)

    def damaged(self, uris: Collection[str]) -> list[str]:
        """Those of some files that are there and cannot be read as a whole."""
        return self._visit(lambda file: deque(self.rows(file), 0) if file.uri in uris else None)

    def writer(self, folder: Folder) -> ArchiveWriter:
        """For a new file of a folder."""
        return ArchiveWriter(self._objects, folder)

    def erase(self, ids: Collection[tuple[str, str]], role: str | None = None) -> Erasing:
        """Remove all rows of trajectories, by role and id; again, it changes nothing. `role`: in its files alone.

        A file that is damaged holds up no other one.
        """
        own, rows, beside = defaultdict[str, set[str]](set), list[int](), Pairs()
        for of, trajectory_id in ids:
            own[of].add(trajectory_id)

        def look(file: ArchiveFile) -> None:
            theirs = own[file.folder.role]
            if not theirs.isdisjoint([row["trajectory_id"] for row in self._columns(file, NAMES)]):
                number, others = self._rewrite(file, theirs)
                rows.append(number)
                beside.update((file.folder.role, other) for other in others)

        damaged = self._visit(look, role=role)
        return Erasing(sum(rows), beside, damaged)

    def remove(self, file: ArchiveFile) -> None:
        """Remove a file for good."""
        self._objects.remove(file.uri)

    def _visit(self, look: Callable[[ArchiveFile], object], *, table: str = "", role: str | None = None) -> list[str]:
        """Look at every file, also at those that come meanwhile; the uris of those that cannot be read.

        One that is gone was written anew by others: what it became is listed from then on.
        """
        seen, absent, damaged = set[str](), set[str](), list[str]()
        while files := [
            file for file in self.files(table=table) if file.uri not in seen and role in (None, file.folder.role)
        ]:
            for file in files:
                try:
                    look(file)
                except (DigestMismatch, NotFound, Rejected) as error:
                    if isinstance(error, NotFound) and file.uri not in absent:
                        absent.add(file.uri)
                        continue
                    log.warning("a file of the archive cannot be read", uri=file.uri, reason=str(error))
                    damaged.append(file.uri)
                seen.add(file.uri)
        return sorted(damaged)

    def _rewrite(self, file: ArchiveFile, without: Collection[str]) -> tuple[int, set[str]]:
        """Store the other rows, then remove the file. How many are gone, and the trajectories of the others."""
        rows, number, others = self.rows(file), 0, set[str]()
        with self.writer(file.folder) as writer:
            while part := list(islice(rows, ROWS_AT_ONCE)):
                kept = [row for row in part if row.trajectory_id not in without]
                writer.add(kept)
                number += len(part) - len(kept)
                others |= {row.trajectory_id for row in kept}
            if others:
                writer.store()
        self.remove(file)
        return number, others

    @contextmanager
    def _verified(self, file: ArchiveFile) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="ratchet-archive-") as directory:
            path = Path(directory) / "rows.parquet"
            with self._reading(file):
                self._objects.get_file(file.uri, path, file.sha256, file.size)
            yield path

    def _columns(self, file: ArchiveFile, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of all rows; of the file only what that takes is read. `Any`: each column has its own type."""
        stored = ParquetFile(uri=file.uri, sha256=file.sha256, size=file.size)
        rows = io.BufferedReader(RemoteRows(self._objects, stored), BUFFER_BYTES)
        with self._reading(file):
            return read_page(rows, columns, 0, sys.maxsize, has_all=True)

    @contextmanager
    def _reading(self, file: ArchiveFile) -> Iterator[None]:
        """Raises `Rejected` where the store is there and does not give this file: its own copy is damaged."""
        try:
            yield
        except ObjectsUnavailable as error:
            self._objects.ping()
            raise Rejected(f"the object store does not give {file.uri}: {error}") from error


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
