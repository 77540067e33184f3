"""Files that appear, or replace an old one, only when they are complete; and the room on the disk that takes them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile

from ratchet.core.errors import Conflict

FileState = tuple[int, int, int]
"""Bytes, time of change in nanoseconds (ctime), inode: a file whose content changes gets others. That time is the
system's own: no tool that copies files sets it back."""
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


def state_of(path: Path) -> FileState:
    """The state that a file is in. Raises `OSError`."""
    status = path.stat()
    return status.st_size, status.st_ctime_ns, status.st_ino


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal. Raises `OSError`."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_whole(path: Path, blob: bytes, *, mode: int = PUBLIC, durable: bool = True) -> None:
    """Write a file in one step. Raises `OSError`."""
    with staged(path, durable=durable) as partial:
        partial.touch(mode=mode)
        partial.write_bytes(blob)


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Keep a directory to this process, which ends with it in any case. Raises `Conflict` when another one has it."""
    windows = sys.platform == "win32"  # it opens no directory
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT) if windows else os.open(directory, os.O_RDONLY)
    try:
        try:
            take(descriptor)
        except BlockingIOError as error:
            raise Conflict(f"another process works in {directory}") from error
        yield
    finally:
        os.close(descriptor)


def take(descriptor: int, *, waits: bool = False) -> None:
    """Lock an open file until it is closed. Raises `BlockingIOError` where another process holds it.

    `waits`: until that lets go of it, or for ten seconds on Windows.
    """
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists on that platform only

        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error
    else:
        import fcntl  # noqa: PLC0415

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


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
        take(file.fileno())
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except FileNotFoundError:
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None


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
