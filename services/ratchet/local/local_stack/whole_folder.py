"""A folder that is written beside its place and takes it by one rename, once it is whole and on the disk.

What is written is called `.ratchet-copy.NAME.partial`, and a lock file beside it, `.ratchet-copy.NAME.lock`, stands for
it: the copy is made, renamed and removed only under this lock. So a sweep that has the lock removes what a killed
process has left, and never what another one is writing or has just renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ratchet.core.errors import Conflict
from ratchet.core.service.files import lock_at
from ratchet.local.local_stack.state import LOCK_FILE, occupied

PREFIX, PARTIAL, LOCK = ".ratchet-copy.", ".partial", ".lock"


@contextmanager
def becoming(target: Path, aside: Path | None = None) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends well. What was there goes to `aside`.

    Raises `Conflict` where another process makes a copy to the same place, and `OSError`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    paths = [path for path in target.parent.glob(f"{PREFIX}*") if path.suffix in {PARTIAL, LOCK}]
    for left in {path.with_suffix(PARTIAL) for path in paths}:
        with suppress(BlockingIOError), held(left.with_suffix(LOCK)):
            if left.is_dir() and not left.is_symlink():  # of an interrupted copy: it holds secrets
                shutil.rmtree(left, ignore_errors=True)
    partial = target.with_name(f"{PREFIX}{target.name}{PARTIAL}")
    try:
        with held(partial.with_suffix(LOCK)):
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed since the sweep
            partial.mkdir(mode=0o700)
            try:
                yield partial
                for path in (partial, *partial.rglob("*")):
                    if not path.is_symlink():
                        _sync(path)
                _take_place(partial, target, aside)
                _sync(target.parent)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except BlockingIOError as error:
        raise Conflict(f"another copy to {target} is being made") from error


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold the lock file at `lock`, which goes at the end. Raises `BlockingIOError` where another process has it."""
    with lock_at(lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _take_place(partial: Path, target: Path, aside: Path | None) -> None:
    if aside is None:
        if target.is_dir() and not occupied(target):
            (target / LOCK_FILE).unlink(missing_ok=True)
        partial.rename(target)  # refuses a folder that something has come into
        return
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
