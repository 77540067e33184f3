"""The disk under the stack: whether there is room for a start, and logs that stay within theirs."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import PRIVATE, shortage, staged

START_BYTES = 1 << 30
"""A start needs this much: empty servers take some 100 MB, and the first days of data need somewhere to go."""

LOG_BYTES = 20 << 20
"""A log that is longer is cut: what it held becomes `<name>.log.1`."""


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
