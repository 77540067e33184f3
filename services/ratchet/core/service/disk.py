"""Room on the disk that servers and services write to."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryFile

LOW_BYTES = 200 << 20
"""Below this the servers soon refuse to write."""


def free_bytes(directory: Path) -> int:
    """Room on the disk that holds `directory`, which need not exist yet. Raises `OSError`."""
    return shutil.disk_usage(existing(directory)).free


def durable_write_s(directory: Path) -> float:
    """Seconds until a small file in `directory` is safe from a power failure; it is gone then. Raises `OSError`."""
    with TemporaryFile(dir=directory) as file:
        began = time.perf_counter()
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def existing(directory: Path) -> Path:
    """`directory`, or the nearest folder above it that exists."""
    resolved = directory.resolve()
    return next(path for path in (resolved, *resolved.parents) if path.exists())


def shortage(free: int, least: int, directory: Path) -> str | None:
    """What to say where `free` bytes are less than `least`; None where they are not."""
    if free >= least:
        return None
    return f"the disk of {directory} has {free / 1e9:.2f} GB free, {least / 1e9:.2f} GB are needed"


def room_check(directory: Path, least: int = LOW_BYTES) -> Callable[[], Awaitable[str | None]]:
    """A check of a service's readiness: None while the disk that it writes to has room, else what is missing."""

    async def has_room() -> str | None:
        try:
            return shortage(await asyncio.to_thread(free_bytes, directory), least, directory)
        except OSError as error:
            return f"the disk of {directory} cannot be looked at: {error}"

    return has_room
