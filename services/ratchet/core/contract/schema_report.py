"""What became of the records that `ratchet data argilla-export` read: the file `schema_report.json`."""

from __future__ import annotations

import msgspec

from ratchet.bus.message import JsonObject, Value


class Dropped(Value, frozen=True, kw_only=True):
    """Records that became no row, by reason, in the order in which reasons are looked for."""

    malformed: int
    unjudged: int
    """Two answers, and no majority for one."""
    empty: int
    identical: int
    too_short: int
    too_long: int
    duplicate: int


class Splits(Value, frozen=True, kw_only=True):
    """Rows of each file."""

    train: int
    eval: int
    test: int


class InputFile(Value, frozen=True, kw_only=True):
    """The file that was read."""

    name: str
    sha256: str
    size: int
    """Bytes."""


class DroppedRecord(Value, frozen=True, kw_only=True):
    """A record that became no row."""

    number: int
    """Of its line; of the record, where records are no lines. The first is 1."""
    problem: str


class SchemaReport(Value, frozen=True, kw_only=True):
    """Counts of one export. `total` is `valid` and all that was dropped; `valid` is the sum of the splits."""

    total: int
    valid: int
    valid_ratio: float
    """Of the total; 0 without any record."""
    dropped: Dropped
    splits: Splits
    parameters: JsonObject
    """The options of the export."""
    seed: int
    input: InputFile
    redacted: dict[str, int]
    """Secrets and personal data that became placeholders, by kind; empty unless asked for."""
    first_dropped: dict[str, list[DroppedRecord]] = msgspec.field(default_factory=dict[str, list[DroppedRecord]])
    """By reason the first records that were dropped for it."""
