"""What became of the records that `ratchet data argilla-export` read: the file `schema_report.json`."""

from __future__ import annotations

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
