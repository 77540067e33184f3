"""One export from the first page to the finished file, JSON lines or Parquet, which appears when it is complete."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.errors import NotFound
from ratchet.core.service.files import staged
from ratchet.core.stores.warehouse import Row
from ratchet.extras.exporters import KINDS
from ratchet.extras.exporters.base import Kind, Record, Selection
from ratchet.extras.exporters.clickhouse_stored import Stored

_TYPES: Mapping[str, Any] = {
    "text": pa.string(),
    "json": pa.string(),
    "number": pa.float64(),
    "integer": pa.int64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
}
"""`Any`: pyarrow has no types of its own for pyright."""


Write = Callable[[Sequence[Record]], object]
"""Adds records, in order."""


class OnProgress(Protocol):
    """Called with how far the work is."""

    def __call__(self, done: float, total: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote."""

    kind: str
    format: str
    file: str
    records: int
    bytes: int
    left_out: Mapping[str, int]
    """By reason, records that are not in the file."""


async def export(
    stored: Stored, name: str, selection: Selection, path: Path, file_format: str, on_progress: OnProgress
) -> ExportReport:
    """Write every selected record of the kind `name`; `file_format`: `jsonl` or `parquet`.

    Raises `NotFound` where there is none, then no file is made or replaced, and `OSError`.
    """
    kind = KINDS[name]
    runs = await stored.unanswered(selection) if kind.unanswered and selection.min_reward is None else []
    total = await stored.count(kind, selection) + len(runs)
    if selection.limit is not None:
        total = min(total, selection.limit)
    done, held, left_out = 0, list[Record](), Counter[str]()
    on_progress(0, total)
    with written(path, file_format, kind.columns) as write:
        async for records in _records(stored, kind, selection, runs):
            done += len(records)
            on_progress(done, max(done, total))
            if kind.settle is None:
                write(records)
            else:
                held += records
        if kind.settle is not None:
            settled, left_out = kind.settle(held)
            write(settled)
            done = len(settled)
        if not done:
            about = kind.summary[:1].lower() + kind.summary[1:].rstrip(".")
            reasons = "".join(f"; left out: {count} {reason}" for reason, count in left_out.items())
            raise NotFound(f"there are no such {name} to write, and no file was made; they are {about}{reasons}")
    written_bytes = (await asyncio.to_thread(path.stat)).st_size
    return ExportReport(name, file_format, str(path), done, written_bytes, left_out)


async def _records(
    stored: Stored, kind: Kind, selection: Selection, runs: Sequence[str]
) -> AsyncIterator[list[Record]]:
    """Page by page: what is stored, what is archived, then the runs without an answer, as far as the limit goes."""
    done, made_of = 0, set[str]()
    async for page in _rows(stored, kind, selection):
        rewards = await stored.rewards(page) if kind.rewarded else {}
        made = [kind.record(row["body"].encode(), rewards.get(_key(row))) for row in page]
        yield [record for record in made if record is not None]
        done += len(page)
        made_of |= {row["trajectory_id"] for row in page}
    if kind.unanswered is None:
        return
    left = [run for run in runs if run not in made_of]  # not one whose answered calls are archived
    left = left if selection.limit is None else left[: selection.limit - done]
    async for page in stored.turns(selection, left):
        yield [kind.unanswered(row["first"].encode(), row["last"].encode()) for row in page]


async def _rows(stored: Stored, kind: Kind, selection: Selection) -> AsyncIterator[list[Row]]:
    """Pages of what is stored and then of what is archived, a trajectory of both once, up to the limit."""
    archived = stored.archived
    seen = dict[tuple[str, str], None]()
    async for page in stored.pages(kind, selection):
        yield page
        if archived is not None:
            seen |= dict.fromkeys(map(_key, page))
    if archived is None:
        return
    left = selection.limit if selection.limit is None else selection.limit - len(seen)
    async for page in archived.pages(kind, selection):
        new = {_key(row): row for row in page if _key(row) not in seen}
        if selection.min_reward is not None and new:
            worth = await stored.rewards([*new.values()])
            least = selection.min_reward
            new = {key: row for key, row in new.items() if key in worth and worth[key].total_reward >= least}
        rows = [*new.values()][:left]
        seen |= dict.fromkeys(new)
        left = None if left is None else left - len(rows)
        if rows:
            yield rows
        if left == 0:
            return


def _key(row: Row) -> tuple[str, str]:
    return row["role"], row["trajectory_id"]


@contextmanager
def written(path: Path, file_format: str, columns: Mapping[str, str]) -> Generator[Write]:
    """What writes to `path`, which is replaced when the block ends well. Raises `OSError`.

    Parquet has a row group for each call, and nested members as JSON text.
    """
    with staged(path) as partial:
        if file_format == "jsonl":
            with partial.open("wb") as lines:
                yield lambda records: lines.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
            return
        schema: Any = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
        json_members = [name for name, kind in columns.items() if kind == "json"]

        def add(records: Sequence[Record]) -> None:
            rows = [{name: record.get(name) for name in columns} for record in records]
            for row in rows:
                row |= {name: msgspec.json.encode(row[name]).decode() for name in json_members if row[name] is not None}
            table.write_table(pa.Table.from_pylist(rows, schema=schema))

        table: Any
        with pq.ParquetWriter(partial, schema, compression="zstd") as table:
            yield add
