"""Rows that were hot long enough go to the archive, and archives that are old enough go for good.

A row leaves ClickHouse only after its file was read back from the store. Nothing of a pass is kept anywhere else, so
one that was killed is simply made again, and two collectors may work at once:

1. The due rows of a table, a role and a day are written to local files, but for those that files of that day hold,
   which are verified once more: who stored one may have been killed before it looked.
2. If the day has no other files than before, each is stored under its digest and verified. Who read the same rows
   stores the same file; who came later sees the file before the first of its rows is gone.
3. The rows are deleted, by one mutation for each table.

Every row goes by itself, also one that a newer version of its event replaced on a later day: ClickHouse may not have
merged them. What came in out of order stays: a deletion names the day and the highest sequence that the files hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

import msgspec
import structlog

from ratchet.bus.message import decode
from ratchet.core.datasets.archives import (
    ARCHIVED,
    ArchivedRow,
    ArchiveFile,
    Archives,
    Erasing,
    EventKey,
    Folder,
    Pairs,
)
from ratchet.core.errors import Conflict, DigestMismatch, NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.service.alerts import Alerts
from ratchet.core.stores.history import parts as id_parts
from ratchet.core.stores.warehouse import Texts, one_of
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_retention import Days, days_expression
from ratchet.trajectory_collector.settings import OTHERS

if TYPE_CHECKING:
    from ratchet.core.stores.erased import Erased
    from ratchet.core.stores.objects import Objects
    from ratchet.core.stores.warehouse import Row, Warehouse

log = structlog.get_logger()

FOLDERS_PER_PASS = 50
"""Most folders of a table that one pass fills."""
PART_ROWS, PART_BYTES = 500, 16 << 20
"""Rows that are read and written together, and their bodies' bytes, but for a row that is larger."""
FILE_BYTES = 16 << 20
"""A file that has bodies of so many bytes is stored: it has to fit into a container's `/tmp`."""
STUCK_S = 86_400
"""ClickHouse that has not deleted rows after so long does not get on with it."""
CLOCKS_APART = timedelta(hours=1)
"""Where two clocks differ by more, no one knows what is old."""
DAYS_PER_PASS = 2
"""Most days of the archive that one pass removes: a clock that is years ahead is noticed before all are gone."""
ALERT = "archive"
AT = {"trajectories": "ended_at", "turns": "at"}

_DUE = """
SELECT role, toDate(ingested_at) AS day
FROM {table}
WHERE ingested_at < {{today:DateTime64(3, 'UTC')}} - toIntervalDay({days})
GROUP BY role, day ORDER BY day, role LIMIT {{limit:UInt32}}
"""
_OF_FOLDER = (
    "role = {role:String} AND ingested_at >= {begin:DateTime64(3, 'UTC')} AND ingested_at < {end:DateTime64(3, 'UTC')}"
)
_SIZES = f"""
SELECT <key> AS key, count() AS rows, sum(length(body)) AS bytes
FROM <table> WHERE {_OF_FOLDER} AND ({{all:Bool}} OR {one_of("trajectory_id", "ids")})
GROUP BY key ORDER BY key
"""  # noqa: S608 - our own names
_ROWS = f"""
SELECT trajectory_id, event_id, toString(generation) AS generation, sequence, correlation_id, causation_id,
    <at> AS at, ingested_at AS stored_at, body
FROM <table>
WHERE {_OF_FOLDER} AND {one_of("trajectory_id", "ids")} AND ({{all:Bool}} OR {one_of("event_id", "events")})
ORDER BY trajectory_id, event_id, ingested_at DESC LIMIT 1 BY trajectory_id, event_id
"""  # noqa: S608 - our own names
_PENDING = """
SELECT latest_fail_reason AS reason, dateDiff('second', create_time, now()) AS pending_s FROM system.mutations
WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done
"""

Part = tuple[Sequence[str], Sequence[str]]
"""Trajectories, and events of a single one; none: all events."""


class _Who(msgspec.Struct):
    """Whose a message is."""

    user_ref: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    parent_trajectory_id: str | None = None
    recorded_as: str | None = None


@dataclass
class Archiver:
    """Moves rows and removes archives, a bounded part in each pass."""

    warehouse: Warehouse
    objects: Objects
    erased: Erased
    hot: Days
    """After so many days rows go to the archive."""
    whole: Days
    """After so many days since they were stored, rows leave the archive."""
    alerts: Alerts
    now: Callable[[], datetime]
    archives: Archives = field(init=False)
    _looked: set[str] = field(default_factory=set[str], init=False)
    """Uris of files that held nothing erased since they were stored."""

    def __post_init__(self) -> None:
        self.archives = Archives(self.objects)

    async def tick(self) -> None:
        """One pass. What cannot be archived stays where it is, and raises an alert."""
        problem = None
        try:
            for table in ARCHIVED:
                if await self._due(table, self.now()):
                    await self._archive_table(table, await self._agreed_now())
        except (RatchetError, OSError) as error:
            problem = f"Rows that are due stay in ClickHouse, as they cannot be archived: {error}"
        problem = problem or await self._expire()
        damaged = await self._forget_all()
        problem = problem or damaged
        if problem is None:
            await self.alerts.clear_alert(ALERT)
        else:
            await self.alerts.raise_alert(ALERT, problem)

    async def _agreed_now(self) -> datetime:
        """The earliest of the three clocks. Raises `Conflict` where they are apart: then no one knows what is old."""
        (row,) = await self.warehouse.rows("SELECT now64(3, 'UTC') AS now")
        clocks = {
            "ClickHouse": row["now"],
            "the object store": await asyncio.to_thread(self.objects.now),
            "the collector": self.now(),
        }
        if max(clocks.values()) - min(clocks.values()) > CLOCKS_APART:
            read = ", ".join(f"{name} says {at:%F %T}" for name, at in clocks.items())
            raise Conflict(f"the clocks differ: {read}")
        return min(clocks.values())

    async def _due(self, table: str, now: datetime) -> list[Folder]:
        """The folders that go to the archive, the oldest first."""
        sql = _DUE.format(table=table, days=days_expression(self.hot))
        today = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
        rows = await self.warehouse.rows(sql, {"today": today, "limit": FOLDERS_PER_PASS})
        return [Folder(table, row["role"], row["day"]) for row in rows]

    async def _archive_table(self, table: str, now: datetime) -> None:
        """Archive the folders that are due, and delete their rows; not while rows of the table are being deleted."""
        if pending := await self.warehouse.rows(_PENDING, {"table": table}):
            reason = next((row["reason"] for row in pending if row["reason"]), None)
            if reason or max(row["pending_s"] for row in pending) > STUCK_S:
                raise Conflict(f"ClickHouse cannot delete rows of {table}: {reason or 'it does not get on with it'}")
            return
        conditions, problems = dict[Folder, str](), list[RatchetError | OSError]()
        try:
            for folder in await self._due(table, now):
                try:
                    if held := await self._archive_folder(folder):
                        conditions[folder] = held
                except (DigestMismatch, NotFound, Rejected, OSError) as error:  # of this folder alone
                    problems.append(error)
        finally:
            if conditions:
                await self._delete(table, conditions)
        if problems:
            raise problems[0]

    async def _delete(self, table: str, conditions: Mapping[Folder, str]) -> None:
        """Delete rows by folder, once the audit knows that they may be gone."""
        since = max(_end(folder) for folder in conditions)
        await self.warehouse.insert("kept_since", [{"name": table, "since": since}], token=None)
        await self.warehouse.command(f"ALTER TABLE {table} DELETE WHERE {' OR '.join(conditions.values())}")

    async def _archive_folder(self, folder: Folder) -> str | None:
        """Store what is not stored yet. The condition on the rows that files hold; None where another pass is at it."""
        files = await asyncio.to_thread(self._held, folder)
        held = {key for file in files.values() for key, _, _ in file}
        places = [(generation, sequence) for file in files.values() for _, generation, sequence in file]
        known, parts = {*files}, deque(await self._parts(folder))
        while parts:
            with self.archives.writer(folder) as writer:
                while parts and writer.size < FILE_BYTES:
                    rows = [row for row in await self._rows(folder, parts.popleft()) if row.key not in held]
                    places += [(row.generation, row.sequence) for row in rows]
                    await asyncio.to_thread(writer.add, rows)
                if writer.rows:
                    if {file.uri for file in await asyncio.to_thread(self._files, folder)} != known:
                        return None
                    stored = await asyncio.to_thread(writer.store)
                    known.add(stored.uri)
                    await self._forget(stored)
                    metrics.ARCHIVED.labels(folder.table, "archived").inc(writer.rows)
                    log.info("rows archived", uri=stored.uri, rows=writer.rows, bytes=stored.size)
        return condition(folder, places) if places else None

    async def _forget_all(self) -> str | None:
        """Forget what is erased in every file that is new to this process: who stored it may have been killed since,
        or a backup brought it back. The problem where a file cannot be read."""
        problems: list[str] = []
        try:
            files = await asyncio.to_thread(self.archives.files)
            self._looked &= {file.uri for file in files}
            for file in (file for file in files if file.uri not in self._looked):
                try:
                    await self._forget(file)
                    self._looked.add(file.uri)
                except (DigestMismatch, Rejected) as error:
                    problems.append(f"{file.uri} of the archive is damaged, and erasures leave it as it is: {error}")
                except NotFound:  # written anew meanwhile
                    continue
        except Unavailable as error:  # others say so
            log.warning("the archive was not looked through for what is erased", reason=str(error))
        except (RatchetError, OSError) as error:
            problems.append(f"The archive cannot be looked through for what is erased: {error}")
        return problems[0] if problems else None

    async def _forget(self, file: ArchiveFile) -> None:
        """Take out of the archive what was erased before a file was there: a later erasure sees the file."""
        theirs = await erased_of(self.erased, await asyncio.to_thread(self.archives.pairs, file))
        done = await erase_archived(self.archives, self.erased, theirs, file.folder.role) if theirs else None
        if done and file.uri in done.damaged:
            raise DigestMismatch("its other rows cannot be read")

    def _held(self, folder: Folder) -> dict[str, list[tuple[EventKey, str, int]]]:
        """What each file holds; nothing where it is not what its name says: its rows are stored again."""
        held: dict[str, list[tuple[EventKey, str, int]]] = {}
        for file in self._files(folder):
            try:
                held[file.uri] = self.archives.keys(file)
            except (DigestMismatch, Rejected) as error:
                log.warning("a file of the archive is damaged", uri=file.uri, reason=str(error))
                held[file.uri] = []
        return held

    def _files(self, folder: Folder) -> list[ArchiveFile]:
        return self.archives.files(folder=folder)

    async def _parts(self, folder: Folder) -> list[Part]:
        """The folder's rows in parts that are read together."""
        parts: list[Part] = []
        for ids in in_parts(await self._sizes(folder, "trajectory_id")):
            if len(ids) > 1:
                parts.append((ids, ()))
            else:
                parts += [(ids, events) for events in in_parts(await self._sizes(folder, "event_id", ids))]
        return parts

    async def _sizes(self, folder: Folder, key: str, ids: Sequence[str] = ()) -> list[Row]:
        sql = _SIZES.replace("<table>", folder.table).replace("<key>", key)
        return await self.warehouse.rows(sql, {**_bounds(folder), "all": not ids, "ids": Texts(ids)})

    async def _rows(self, folder: Folder, part: Part) -> list[ArchivedRow]:
        ids, events = part
        sql = _ROWS.replace("<table>", folder.table).replace("<at>", AT[folder.table])
        chosen = {"ids": Texts(ids), "all": not events, "events": Texts(events)}
        rows = await self.warehouse.rows(sql, {**_bounds(folder), **chosen})
        return [archived_row(row) for row in rows]

    async def _expire(self) -> str | None:
        """Remove the oldest archives. The problem where one cannot be, or where more is due than one pass removes."""
        problems: list[str] = []
        try:
            await asyncio.to_thread(self.objects.ping)
            due = await asyncio.to_thread(self._expired, await self._agreed_now())
            for file in (file for day in sorted(due)[:DAYS_PER_PASS] for file in due[day]):
                try:
                    await asyncio.to_thread(self._remove, file)
                except Rejected as error:
                    problems.append(f"Files of the archive that are too old cannot be removed: {error}")
        except Unavailable as error:  # others say so
            log.warning("no archive was removed", reason=str(error))
            return None
        except (RatchetError, OSError) as error:
            return f"Files of the archive that are too old are not removed: {error}"
        if len(due) > DAYS_PER_PASS:
            problems.append(
                f"{len(due)} days of the archive are too old at once; {DAYS_PER_PASS} of them go in an hour. If that is"
                " a surprise, stop the collector and look at the clocks."
            )
        return problems[0] if problems else None

    def _expired(self, now: datetime) -> dict[date, list[ArchiveFile]]:
        """By day, the files that are too old."""
        due: dict[date, list[ArchiveFile]] = {}
        for file in self.archives.files():
            days = self.whole.get(file.folder.role, self.whole[OTHERS])
            if days and now >= _end(file.folder) + timedelta(days=days):
                due.setdefault(file.folder.day, []).append(file)
        return due

    def _remove(self, file: ArchiveFile) -> None:
        rows = self.archives.count(file)
        self.archives.remove(file)
        metrics.ARCHIVED.labels(file.folder.table, "expired").inc(rows)
        log.info("archive expired", uri=file.uri, rows=rows)


def archived_row(row: Row) -> ArchivedRow:
    """A row of ClickHouse as the archive keeps it."""
    return ArchivedRow(**row, **msgspec.structs.asdict(decode(row["body"], _Who)))


async def erase_archived(
    archives: Archives, erased: Erased, ids: Collection[tuple[str, str]], role: str | None = None
) -> Erasing:
    """Remove rows of the archive; then what others erased while a file was written anew, which may have brought it
    back. Who erases lists its ids first: so of two at once each sees the other's ids, or the other's file."""
    erasing = done = await asyncio.to_thread(archives.erase, ids, role)
    while theirs := await erased_of(erased, erasing.beside):
        erasing = await asyncio.to_thread(archives.erase, theirs, role)
    return done


async def erased_of(erased: Erased, pairs: Pairs) -> Pairs:
    """Those that an erasure covers."""
    names = sorted({trajectory_id for _, trajectory_id in pairs})
    return pairs & {pair for ids in id_parts(names) for pair in await erased.among(ids)}


def in_parts(sizes: Iterable[Row]) -> list[list[str]]:
    """Keys in parts of at most `PART_ROWS` and `PART_BYTES`; a larger one stands alone."""
    parts: list[list[str]] = []
    rows = size = 0
    for row in sizes:
        rows, size = rows + row["rows"], size + row["bytes"]
        if not parts or rows > PART_ROWS or size > PART_BYTES:
            parts.append([])
            rows, size = row["rows"], row["bytes"]
        parts[-1].append(row["key"])
    return parts


def condition(folder: Folder, places: Iterable[tuple[str, int]]) -> str:
    """The rows of a folder up to the highest sequence, in each generation, of those that are stored."""
    newest: dict[str, int] = {}
    for generation, sequence in places:
        newest[generation] = max(sequence, newest.get(generation, 0))
    begin, end = (f"toDateTime64('{at:%F %T}', 3, 'UTC')" for at in (_begin(folder), _end(folder)))
    up_to = " OR ".join(f"(generation = '{name}' AND sequence <= {number})" for name, number in sorted(newest.items()))
    return f"(role = '{folder.role}' AND ingested_at >= {begin} AND ingested_at < {end} AND ({up_to}))"


def _begin(folder: Folder) -> datetime:
    return datetime.combine(folder.day, time(), UTC)


def _end(folder: Folder) -> datetime:
    return _begin(folder) + timedelta(days=1)


def _bounds(folder: Folder) -> dict[str, object]:
    return {"role": folder.role, "begin": _begin(folder), "end": _end(folder)}
