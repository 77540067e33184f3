"""One import from the file to the bus: records that are new become trajectories, all others are reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from ratchet.contract import Message, Trajectory
from ratchet.errors import InvalidMessage, NotFound, Rejected
from ratchet.importers.base import Importer, ImportOptions, MalformedRecord

CHUNK = 200
"""Records published together."""
PLAIN = ImportOptions()


class Sink(Protocol):
    """Where imported messages go: a bus."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """Store all of them. Raises `InvalidMessage`, `Rejected` or `BusUnavailable`."""
        ...


class Stored(Protocol):
    """What is already there: the warehouse."""

    async def roles(self, trajectory_ids: Sequence[str]) -> Mapping[str, str]:
        """The role of each of these trajectories that is stored."""
        ...


class NothingStored:
    """Stands in for a warehouse that cannot be reached."""

    async def roles(self, trajectory_ids: Sequence[str]) -> Mapping[str, str]:
        del trajectory_ids
        return {}


OnProgress = Callable[[int, int], None]
"""Called with the number of records that are done, and of all."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that was left out, and why."""

    index: int
    """Its place among the records, from 0."""
    reason: str


@dataclass
class ImportReport:
    """What became of the records of one import."""

    records: int = 0
    published: int = 0
    repeated: int = 0
    """Records that stand in the same file twice: published once."""
    present: int = 0
    """Records that an earlier import has stored: left alone."""
    elsewhere: Counter[str] = field(default_factory=Counter[str])
    """Records that are stored under another role, by that role: a trajectory has one role, so they are left alone."""
    malformed: list[Malformed] = field(default_factory=list[Malformed])
    redactions: Counter[str] = field(default_factory=Counter[str])
    """What was redacted in the published records, by kind."""


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line that is not JSON."""

    reason: str


async def import_file(
    importer: Importer,
    sink: Sink,
    path: Path,
    options: ImportOptions = PLAIN,
    stored: Stored | None = None,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Publish every readable record of the file that is not stored yet, and report the others one by one.

    Raises `NotFound` when there is no such file, `Rejected` when it is not JSON at all, and what the sink raises while
    the broker is away: importing again goes on where that happened.
    """
    report, seen = ImportReport(), set[str]()
    records = read_records(path)
    for begin in range(0, len(records), CHUNK):
        chunk = dict(enumerate(records[begin : begin + CHUNK], begin))
        readable = _readable(importer, chunk, options, seen, report)
        roles = await (stored or NothingStored()).roles([one.trajectory_id for one in readable.values()])
        missing: dict[int, Trajectory] = {}
        for index, trajectory in readable.items():
            role = roles.get(trajectory.trajectory_id)
            if role is None:
                missing[index] = trajectory
            elif role == trajectory.role:
                report.present += 1
            else:
                report.elsewhere[role] += 1
        await _publish(sink, missing, report)
        report.records += len(chunk)
        if on_progress is not None:
            on_progress(report.records, len(records))
    report.malformed.sort(key=lambda malformed: malformed.index)
    return report


def _readable(
    importer: Importer, records: dict[int, object], options: ImportOptions, seen: set[str], report: ImportReport
) -> dict[int, Trajectory]:
    """The trajectories among the records, each once."""
    trajectories: dict[int, Trajectory] = {}
    for index, record in records.items():
        try:
            if isinstance(record, UnreadableLine):
                raise MalformedRecord(record.reason)
            trajectory = importer.trajectory_of(record, options)
        except (ValueError, Rejected) as error:
            report.malformed.append(Malformed(index, str(error)))
            continue
        if trajectory.trajectory_id in seen:
            report.repeated += 1
            continue
        seen.add(trajectory.trajectory_id)
        trajectories[index] = trajectory
    return trajectories


async def _publish(sink: Sink, chunk: dict[int, Trajectory], report: ImportReport) -> None:
    """Publish together; when one is refused, one by one, to know which."""
    try:
        await sink.publish_all(list(chunk.values()))
    except (InvalidMessage, Rejected) as error:
        if len(chunk) == 1:
            report.malformed.append(Malformed(next(iter(chunk)), str(error)))
            return
        for index, trajectory in chunk.items():
            await _publish(sink, {index: trajectory}, report)
        return
    for trajectory in chunk.values():
        report.published += 1
        report.redactions.update((trajectory.labels or {}).get("redactions", {}))


def read_records(path: Path) -> list[object]:
    """The records of a file: a JSON list, one object, or JSON lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise Rejected(f"{path} is a directory, not a file") from error
    except (OSError, UnicodeError) as error:
        raise Rejected(f"cannot read {path}: {error}") from error
    if not text.strip():
        raise Rejected(f"{path} is empty")
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("{"):
            raise Rejected(f"{path} is not JSON: {error}") from error
        records = [_line(line) for line in text.split("\n") if line.strip()]
        if all(isinstance(record, UnreadableLine) for record in records):
            raise Rejected(f"{path} is neither JSON nor JSON lines: {error}") from error
        return records
    return cast("list[object]", parsed) if isinstance(parsed, list) else [parsed]


def _line(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return UnreadableLine(f"not JSON: {error}")
