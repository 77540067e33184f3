"""Files that appear, or replace an old one, only when they are complete."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from ratchet.core.errors import Conflict

PUBLIC, PRIVATE = 0o666, 0o600
"""Modes of new files, before the umask: for all users, and for this one alone."""
OPENINGS = 100
"""Of a lock file that others replace: they take turns within a few, and no wait is without an end."""


@contextmanager
def staged(path: Path, *, durable: bool = True) -> Generator[Path]:
    """A file to write, which becomes `path` when the block ends well; otherwise `path` stays as it was.

    `durable`: wait for the disk, so that the file survives a power failure; not worth it for content that can be
    fetched again. Raises `OSError`, which names what the caller knows: `path`, or its folder where that is missing.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
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


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Keep a directory to this process, which ends with it in any case. Raises `Conflict` when another one has it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"another process works in {directory}") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_at(path: Path) -> Generator[None]:
    """Hold the lock file at `path`, made where there is none; the kernel lets go of it when this process dies.

    A file that was removed or replaced between its opening and its locking locks nothing, so it is opened again.
    Raises `BlockingIOError` when another process holds it or replaces it at each of `OPENINGS` times, and `OSError`.
    """
    opened = (_locked(path) for _ in range(OPENINGS))
    file = next((file for file in opened if file is not None), None)
    if file is None:
        raise BlockingIOError(f"{path} is another file each time it is opened")
    with file:
        yield


def _locked(path: Path) -> TextIOWrapper | None:
    """The open and locked file that lies at `path`; None where another one has taken its place meanwhile."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except FileNotFoundError:
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None
