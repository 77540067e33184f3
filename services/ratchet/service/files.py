"""Files that appear, or take an old one's place, only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PUBLIC, PRIVATE = 0o666, 0o600
"""Modes of new files, before the umask: for everybody, and for this user alone."""


@contextmanager
def staged(path: Path, *, durable: bool = True) -> Generator[Path]:
    """Where to write what shall be `path` when the block ends well; otherwise `path` stays as it was.

    `durable`: wait for the disk, so that it survives a power failure too; not worth it for what can be fetched again.
    Raises `OSError`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, blob: bytes, *, mode: int = PUBLIC, durable: bool = True) -> None:
    """Write a file in one step. Raises `OSError`."""
    with staged(path, durable=durable) as partial:
        partial.touch(mode=mode)
        partial.write_bytes(blob)
