"""Reading a dataset snapshot: one Parquet row per trajectory, per preference pair, or per labelled answer."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from ratchet.contract.snapshot import Row
from ratchet.datasets.parquet import read_rows
from ratchet.errors import Rejected
from ratchet.trainer_worker.errors import DataUnusable

R = TypeVar("R", bound=Row)


def read_snapshot(path: Path, kind: type[R]) -> list[R]:
    """All rows of a kind, in the file's order. Raises `DataUnusable` when they cannot be read, or there are none."""
    try:
        rows = list(read_rows(path, kind))
    except Rejected as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error
    if not rows:
        raise DataUnusable("the snapshot holds no rows")
    return rows
