"""Where the temporary files of tests lie: in memory, where a server's `fsync` takes no time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Free there, or the files lie on the disk: a whole run takes less than half of it."""


def place_in_memory(config: pytest.Config) -> None:
    """Choose the folder of this run, unless its caller did, and remove those of runs that ended by a signal."""
    if config.option.basetemp is not None or hasattr(config, "workerinput") or not MEMORY.is_dir():
        return
    prefix = f"ratchet-tests-{os.getuid()}-"
    for folder in MEMORY.glob(f"{prefix}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(prefix))):
            shutil.rmtree(folder, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        return
    folder = MEMORY / f"{prefix}{os.getpid()}"
    config.option.basetemp = str(folder)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
