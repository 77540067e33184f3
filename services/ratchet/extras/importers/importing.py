"""One import from the file to the bus: records that are new become trajectories, all others are reported."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.contract import Preference, Trajectory
from ratchet.core.errors import InvalidMessage, Rejected
from ratchet.core.preferences.publishing import Sink
from ratchet.extras.importers.base import UNKNOWN_TIME, Imported, Importer, ImportOptions
from ratchet.extras.importers.gathering import gathered
from ratchet.extras.importers.reading import Record, Records, Unreadable

CHUNK = 200
"""Records that are looked up and published together."""
CHUNK_BYTES = 4 << 20
"""Of large records fewer are: as many as fill this much of the files."""
NAMED = 1000
"""Malformed records that a report names; further ones are counted."""
PLAIN = ImportOptions()


RolesOf = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]
"""The role of each of some trajectories that is stored already: asks the warehouse."""
OnProgress = Callable[[int, int], None]
"""Called with the number of bytes that are read, and of all."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that was left out, and why."""

    index: int
    """Its place among the records, from 0."""
    reason: str
    where: str
    """Where it stands: `line 7`, `row 12`, in a folder with the name of its file."""


@dataclass
class ImportReport:
    """What became of the records of one import."""

    records: int = 0
    published: int = 0
    """Trajectories and preferences; a record may hold several, or be a part of one."""
    preferences: int = 0
    """Those of them that are preferences."""
    undated: int = 0
    """Published trajectories whose file gives no time: they stand on the day of `UNKNOWN_TIME`."""
    repeated: int = 0
    """Records that stand in the same file twice: published once."""
    present: int = 0
    """Records that an earlier import has stored: left alone."""
    elsewhere: Counter[str] = field(default_factory=Counter[str])
    """Records that are stored under another role, by that role: a trajectory has one role, so they are left alone."""
    malformed: list[Malformed] = field(default_factory=list[Malformed])
    more_malformed: int = 0
    """Malformed records beyond those that are named."""
    redactions: Counter[str] = field(default_factory=Counter[str])
    """What was redacted in the published records, by kind."""

    def leave_out(self, record: Record, reason: str) -> None:
        """Note a record that is not imported."""
        if len(self.malformed) >= NAMED:
            self.more_malformed += 1
            return
        # Reasons quote records, and halves of surrogate pairs are no text that a terminal or JSON can carry.
        reason, where = (text.encode(errors="backslashreplace").decode() for text in (reason, record.where))
        self.malformed.append(Malformed(record.index, reason, where))


async def import_file(
    importer: Importer,
    sink: Sink,
    path: Path,
    options: ImportOptions = PLAIN,
    roles_of: RolesOf | None = None,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Publish what every readable record holds and is not stored yet, and report the others one by one.

    Raises `NotFound` when there is no such file, `Rejected` when nothing in it can be read, and what the sink raises
    while the broker is away: importing again goes on where that happened.
    """
    report, seen, records = ImportReport(), set[bytes](), Records(path)

    def counted() -> Iterator[Record]:
        for record in records:
            report.records += 1
            yield record

    for chunk in _chunks(gathered(counted(), importer.group_of) if importer.group_of is not None else counted()):
        messages = [held for record in chunk for held in _messages(importer, record, options, seen, report)]
        trajectories = [message.trajectory_id for _, message in messages if isinstance(message, Trajectory)]
        roles = await roles_of(trajectories) if roles_of is not None and trajectories else {}
        missing: list[tuple[Record, Imported]] = []
        for record, message in messages:
            role = roles.get(message.trajectory_id) if isinstance(message, Trajectory) else None
            if role is None:
                missing.append((record, message))
            elif role == message.role:
                report.present += 1
            else:
                report.elsewhere[role] += 1
        await _publish(sink, missing, report)
        if on_progress is not None:
            on_progress(records.read, records.size)
    report.malformed.sort(key=lambda malformed: malformed.index)
    return report


def _chunks(runs: Iterator[Record]) -> Iterator[list[Record]]:
    """A bounded part of the records at a time."""
    chunk: list[Record] = []
    size = 0
    for record in runs:
        chunk.append(record)
        size += record.size
        if len(chunk) >= CHUNK or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _messages(
    importer: Importer, record: Record, options: ImportOptions, seen: set[bytes], report: ImportReport
) -> list[tuple[Record, Imported]]:
    """What a record holds, each message once."""
    if isinstance(record.value, Unreadable):
        report.leave_out(record, record.value.reason)
        return []
    try:
        messages = list(importer.messages_of(record.value, options))
    except (ValueError, Rejected) as error:
        report.leave_out(record, str(error))
        return []
    except Exception as error:  # noqa: BLE001 - the boundary: packages bring formats, and one record ends no import
        report.leave_out(record, f"{type(error).__name__}: {error}")
        return []
    new: list[tuple[Record, Imported]] = []
    for message in messages:
        key = uuid.uuid5(uuid.NAMESPACE_OID, message.event_id).bytes
        if key in seen:
            report.repeated += 1
        else:
            seen.add(key)
            new.append((record, message))
    return new


async def _publish(sink: Sink, chunk: Sequence[tuple[Record, Imported]], report: ImportReport) -> None:
    """Publish together; when one is refused, one by one, to know which."""
    if not chunk:
        return
    try:
        await sink.publish_all([message for _, message in chunk])
    except (InvalidMessage, Rejected) as error:
        if len(chunk) == 1:
            report.leave_out(chunk[0][0], str(error))
            return
        for held in chunk:
            await _publish(sink, [held], report)
        return
    for _, message in chunk:
        report.published += 1
        report.preferences += isinstance(message, Preference)
        report.undated += isinstance(message, Trajectory) and message.start_timestamp == UNKNOWN_TIME
        report.redactions.update((message.labels or {}).get("redactions", {}))
