"""A disk of its own for a test, which it may fill."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_KB = 1_500_000
"""More than a stack asks for at its start; memory is taken by what is written alone."""
TRIES = 100


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system in memory, mounted at `folder`; the test is skipped where this user may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mounted = _mount(f"size={SIZE_KB}k", folder)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Not a page is free, for the length of a `with` block: the disk becomes as small as what it holds."""
    for _ in range(TRIES):  # others may write between the look and the mount, which then refuses
        mounted = _mount(f"remount,size={shutil.disk_usage(disk).used // 1024}k", disk)
        if not mounted.returncode:
            break
    mounted.check_returncode()
    try:
        yield
    finally:
        _mount(f"remount,size={SIZE_KB}k", disk).check_returncode()


def _mount(options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
