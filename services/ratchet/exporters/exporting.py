"""One export from the first page to the finished file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.exporters.base import Kind, Wanted
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
    total = await stored.count(kind, wanted)
    if wanted.limit is not None:
        total = min(total, wanted.limit)
    done = 0
    tell(0, total)
    with written(path, file_format, kind.columns) as writer:
        async for page in stored.pages(kind, wanted):
            rewards = await stored.rewards(page) if kind.rewarded else {}
            writer.write(
                [kind.record(row["body"].encode(), rewards.get((row["role"], row["trajectory_id"]))) for row in page]
            )
            done += len(page)
            tell(done, total)
        if kind.unanswered is not None and wanted.min_reward is None:
            left = None if wanted.limit is None else wanted.limit - done
            async for page in stored.unanswered(wanted, left):
                writer.write([kind.unanswered(row["first"].encode(), row["last"].encode()) for row in page])
                done += len(page)
                tell(done, total)
    return ExportReport(name, file_format, str(path), done, path.stat().st_size)
