"""What left ClickHouse for the archive, page by page, as `clickhouse_stored` gives what is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from ratchet.core.datasets.archives import ARCHIVED, ArchivedRow, ArchiveFile, Archives
from ratchet.core.stores.warehouse import Row
from ratchet.extras.exporters.base import Kind, Selection
from ratchet.extras.exporters.clickhouse_stored import EVER, PAGE


class ArchivedRows:
    """Reads; the days that were stored last come first."""

    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    async def pages(self, kind: Kind, selection: Selection) -> AsyncIterator[list[Row]]:
        """Rows with `role`, `trajectory_id` and `body`, without regard to rewards and the limit.

        A row that is stored in ClickHouse too, or in two files, comes as often.
        """
        if kind.table not in ARCHIVED:
            return
        files = await asyncio.to_thread(self._archives.files, table=kind.table)
        since, until = selection.since or EVER[0], selection.until or EVER[1]
        for file in reversed(files):
            # Nothing is stored before it ended.
            if selection.role not in (None, file.folder.role) or file.folder.day < since.date():
                continue
            rows = self._archives.rows(file)
            while page := await asyncio.to_thread(_next, rows):
                yield [_row(file, row) for row in page if since <= row.at < until]


def _next(rows: Iterator[ArchivedRow]) -> list[ArchivedRow]:
    return list(islice(rows, PAGE))


def _row(file: ArchiveFile, row: ArchivedRow) -> Row:
    return {"role": file.folder.role, "trajectory_id": row.trajectory_id, "body": row.body}
