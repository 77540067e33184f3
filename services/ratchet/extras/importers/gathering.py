"""Brings records of one run together that stand anywhere in the files, without keeping the files in memory.

Each record is put on a shelf on the disk (SQLite, deleted at the end) as large as the files; the runs are then read in
the order in which each began.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ratchet.core.errors import Rejected
from ratchet.extras.importers.reading import MOST_BYTES, Record, Unreadable

BATCH_BYTES = 4 << 20
"""Records that are written together."""


def gathered(records: Iterable[Record], group_of: Callable[[object], str | None]) -> Iterator[Record]:
    """One record for each run, whose value is the list of its records. Unreadable ones come by themselves.

    Raises `Rejected` when the disk has no room for the shelf.
    """
    with tempfile.TemporaryDirectory(prefix="ratchet-import-") as directory:
        shelf = sqlite3.connect(Path(directory) / "shelf.sqlite")
        try:
            shelf.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
                "CREATE TABLE records (run TEXT, place INTEGER, name TEXT, value TEXT)"
            )
            yield from _shelved(shelf, records, group_of)
            yield from _runs(shelf)
        except sqlite3.OperationalError as error:
            raise Rejected(f"records of a run cannot be put together in {directory}: {error}") from error
        finally:
            shelf.close()


def _shelved(
    shelf: sqlite3.Connection, records: Iterable[Record], group_of: Callable[[object], str | None]
) -> Iterator[Record]:
    """Put every record of a run on the shelf; what is part of none is given back as it is or left out."""
    insert = "INSERT INTO records VALUES (?, ?, ?, ?)"
    rows: list[tuple[str, int, str, str]] = []
    size = 0
    for record in records:
        if isinstance(record.value, Unreadable):
            yield record
            continue
        try:
            run = group_of(record.value)
            if run is not None:
                run.encode()
                rows.append((run, record.index, record.where, json.dumps(record.value, default=str)))
                size += len(rows[-1][3])
        except (ValueError, RecursionError) as error:
            yield Record(record.index, record.where, Unreadable(str(error)))
        except Exception as error:  # noqa: BLE001 - the boundary: packages bring formats
            yield Record(record.index, record.where, Unreadable(f"{type(error).__name__}: {error}"))
        if size > BATCH_BYTES:
            shelf.executemany(insert, rows)
            rows, size = [], 0
    shelf.executemany(insert, rows)
    shelf.execute("CREATE INDEX by_run ON records (run, place)")


def _runs(shelf: sqlite3.Connection) -> Iterator[Record]:
    runs = shelf.execute(
        "SELECT run, min(place) AS first, count(*), sum(length(value)) FROM records GROUP BY run ORDER BY first"
    )
    for run, first, count, size in runs:
        parts = shelf.execute("SELECT name, value FROM records WHERE run = ? ORDER BY place", (run,))
        name, value = parts.fetchone()
        where = name if count == 1 else f"{name} and {count - 1} more of run {run}"
        if size > MOST_BYTES:
            yield Record(first, where, Unreadable(f"is longer than {MOST_BYTES >> 20} MiB together"))
        else:
            yield Record(first, where, [json.loads(value), *(json.loads(text) for _, text in parts)], size)
