"""The directory that a worker's attempts work in: of one living worker, and empty when it begins."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ratchet.errors import ConfigError


@contextmanager
def own_directory(path: Path) -> Generator[None]:
    """Hold `path` for this worker alone, without what a killed one has left there. Its lock ends with the process.

    Raises `ConfigError` while another worker holds it.
    """
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY)
    try:
        _lock(directory, path)
        for left in path.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(directory)


def _lock(directory: int, path: Path) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another worker named {path.name} works in {path}; RATCHET_TRAINER_WORKER gives this one a name of its own"
        ) from error
