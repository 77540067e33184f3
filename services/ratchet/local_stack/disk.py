"""The disk under the stack: whether there is room, and logs that stay within theirs."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from ratchet.errors import ConfigError
from ratchet.service.files import PRIVATE, staged

START_BYTES = 1 << 30
"""A start needs this much: empty servers take some 100 MB, and the first days of data need somewhere to go."""

LOW_BYTES = 200 << 20
"""Below this the servers soon refuse to write."""

LOG_BYTES = 20 << 20
"""A log that is longer is cut: what it held becomes `<name>.log.1`."""


def free_bytes(directory: Path) -> int:
    """Room on the disk that holds `directory`, which need not exist yet. Raises `OSError`."""
    return shutil.disk_usage(existing(directory)).free


def existing(directory: Path) -> Path:
    """`directory`, or the nearest folder above it that exists."""
    resolved = directory.resolve()
    return next(path for path in (resolved, *resolved.parents) if path.exists())


def shortage(free: int, least: int, directory: Path) -> str | None:
    """What to say where `free` bytes are less than `least`; None where they are not."""
    if free >= least:
        return None
    return f"the disk of {directory} has {free / 1e9:.2f} GB free, {least / 1e9:.2f} GB are needed"


def require_room(directory: Path, free: int) -> None:
    """Raise `ConfigError` when a stack in `directory` could not work for long."""
    missing = shortage(free, START_BYTES, directory)
    if missing is not None:
        raise ConfigError(f"{missing} for a start; streams, tables and snapshots grow to several GB with use")


def cut_log(log: Path, most_bytes: int = LOG_BYTES) -> None:
    """Move what a long log holds to `<name>.log.1`, while a process goes on writing to it (it appends).

    Lines written between copying and cutting are lost. On a full disk the log stays as it is. Raises nothing.
    """
    with suppress(OSError):
        if log.stat().st_size <= most_bytes:
            return
        older = log.with_suffix(".log.1")
        with staged(older, durable=False) as partial:
            partial.touch(mode=PRIVATE)
            shutil.copyfile(log, partial)
        with log.open("r+b") as file:
            file.truncate(0)
