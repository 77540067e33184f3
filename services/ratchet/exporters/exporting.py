"""One export from the first page to the finished file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.exporters.base import Kind, Record, Wanted
from ratchet.exporters.clickhouse_stored import Stored
from ratchet.exporters.files import written


class Tell(Protocol):
    """Told how far the work is."""

    def __call__(self, done: float, total: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote."""

    kind: str
    format: str
    file: str
    records: int
    bytes: int


async def export(
    stored: Stored, what: tuple[str, Kind], wanted: Wanted, to: tuple[Path, str], tell: Tell
) -> ExportReport:
    """Write everything that is wanted. `what` is a kind with its name, `to` the file and its format."""
    (name, kind), (path, file_format) = what, to
    runs = await stored.unanswered(wanted) if kind.unanswered and wanted.min_reward is None else []
    total = await stored.count(kind, wanted) + len(runs)
    if wanted.limit is not None:
        total = min(total, wanted.limit)
    done = 0
    tell(0, total)
    with written(path, file_format, kind.columns) as writer:
        async for records in _records(stored, kind, wanted, runs):
            writer.write(records)
            done += len(records)
            tell(done, total)
    return ExportReport(name, file_format, str(path), done, path.stat().st_size)


async def _records(stored: Stored, kind: Kind, wanted: Wanted, runs: Sequence[str]) -> AsyncIterator[list[Record]]:
    """Page by page: what is stored, then the runs without an answer, as far as the limit goes."""
    done = 0
    async for page in stored.pages(kind, wanted):
        rewards = await stored.rewards(page) if kind.rewarded else {}
        yield [kind.record(row["body"].encode(), rewards.get((row["role"], row["trajectory_id"]))) for row in page]
        done += len(page)
    if kind.unanswered is None:
        return
    left = runs if wanted.limit is None else runs[: wanted.limit - done]
    async for page in stored.turns(wanted, left):
        yield [kind.unanswered(row["first"].encode(), row["last"].encode()) for row in page]
