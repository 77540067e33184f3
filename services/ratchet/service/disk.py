"""Room on the disk that servers and services write to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

LOW_BYTES = 200 << 20
"""Below this the servers soon refuse to write."""


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


def room_check(directory: Path, least: int = LOW_BYTES) -> Callable[[], Awaitable[str | None]]:
    """A check of a service's readiness: None while the disk that it writes to has room, else what is missing."""

    async def has_room() -> str | None:
        try:
            return shortage(await asyncio.to_thread(free_bytes, directory), least, directory)
        except OSError as error:
            return f"the disk of {directory} cannot be looked at: {error}"

    return has_room
