"""Folders that appear whole, and that processes hold against each other."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def becoming(folder: Path) -> Generator[Path]:
    """A folder to fill, which gets its name when it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """Hold a folder against other processes that ask for it so."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
