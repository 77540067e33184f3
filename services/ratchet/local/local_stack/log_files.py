"""The log of a process: `logs/<name>.log`, and beside it what it held before, in parts `<name>.log.<UTC time>`.

A start begins a new log, and one that grows past `LOG_BYTES` is cut. Parts are kept for 30 days, within a bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ratchet.core.service.files import PRIVATE, staged

LOG_BYTES = 20 << 20
"""A log that is longer is cut."""
KEPT_FOR = timedelta(days=30)
KEPT_BYTES = 10 * LOG_BYTES
"""Of the parts of one log: a process that logs without end fills no disk."""


def log_tail(log: Path, lines: int = 12, reach: int = 8192, begin: int = 0) -> list[str]:
    """The last lines of a log, as far as its last `reach` bytes hold them; none from before the byte `begin`."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - reach))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def parts_of(log: Path) -> Sequence[Path]:
    """What the log held before, the oldest first."""
    return sorted(part for part in log.parent.glob(f"{log.name}.[0-9]*T*") if part.is_file())


def begin_log(log: Path) -> None:
    """Make what a log holds a part of it. Raises `OSError`."""
    with suppress(FileNotFoundError):
        if log.stat().st_size:
            log.replace(_next_part(log))


def cut_log(log: Path, most_bytes: int = LOG_BYTES) -> None:
    """Make what a long log holds a part of it, while a process goes on writing to it (it appends).

    Lines written between copying and cutting are lost. On a full disk the log stays as it is. Raises nothing.
    """
    with suppress(OSError):
        if log.stat().st_size <= most_bytes:
            return
        with staged(_next_part(log), durable=False) as partial:
            partial.touch(mode=PRIVATE)
            shutil.copyfile(log, partial)
        with log.open("r+b") as file:
            file.truncate(0)


def remove_old_parts(log: Path, now: datetime, most_bytes: int = KEPT_BYTES) -> None:
    """Remove parts that were written last before `KEPT_FOR`, and the oldest beyond the bound. Raises nothing."""
    kept = 0
    for part in reversed(parts_of(log)):
        with suppress(OSError):
            status = part.stat()
            kept += status.st_size
            if kept > most_bytes or status.st_mtime < (now - KEPT_FOR).timestamp():
                part.unlink()


def _next_part(log: Path) -> Path:
    return log.with_name(f"{log.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
