"""A copy of a state that catches up with it, pass by pass: each takes what is new or has changed since the last one."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from ratchet.core.service.files import FileState, state_of
from ratchet.local.local_stack.state_tree import StateTree, read_tree

PIECE = 1 << 20
SETTLED_NS = 1_000_000_000
"""A file that changed so shortly before it was copied may change again without another time of change: the kernel's
ticks are coarse. The next pass copies it again."""

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are copied, and all."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    sha256: str
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]


@dataclass
class StateCopy:
    """What the folder `to` holds of the state in `directory`."""

    directory: Path
    to: Path
    names: tuple[str, ...]
    """What is copied of it."""
    on_progress: OnProgress | None = None
    files: dict[str, BackupFile] = field(default_factory=dict[str, BackupFile])
    folders: list[str] = field(default_factory=list[str])
    links: dict[str, str] = field(default_factory=dict[str, str])
    """As in `StateTree`."""
    _settled: dict[str, FileState] = field(default_factory=dict[str, FileState])
    """By name: the state in which a file was copied, if it had not just changed then."""

    def catch_up(self, *, moving: bool = False, until: float = math.inf) -> bool:
        """Copy what is new or has changed, remove what is gone. False: `until` (`time.monotonic()`) came first.

        `moving`: others write to the state meanwhile. Raises `ConfigError` as `read_tree` does, and `OSError`.
        """
        tree = read_tree(self.directory, self.names, moving=moving)
        self._remove_gone(tree)
        self.to.mkdir(exist_ok=True)
        for name in tree.folders:
            (self.to / name).mkdir(exist_ok=True)
        self.folders, self.links = tree.folders, tree.links
        size, done = tree.size, 0
        for name, path in tree.files.items():
            if time.monotonic() > until:
                return False
            try:
                self._copy(name, path)
            except FileNotFoundError:
                if not moving:
                    raise
                continue
            done += self.files[name].size
            if self.on_progress is not None:
                self.on_progress(min(done, size), size)
        return True

    def _remove_gone(self, tree: StateTree) -> None:
        for name in self.files.keys() - tree.files.keys():
            self._forget(name)
        for name in sorted(set(self.folders) - set(tree.folders), reverse=True):
            (self.to / name).rmdir()

    def _forget(self, name: str) -> None:
        self.files.pop(name, None)
        self._settled.pop(name, None)
        with suppress(FileNotFoundError):
            (self.to / name).unlink()

    def _copy(self, name: str, path: Path) -> None:
        if name in self._settled and self._settled[name] == state_of(path):
            return
        self._forget(name)
        with path.open("rb") as source:
            now, seen = time.time_ns(), os.fstat(source.fileno())
            mode = stat.S_IMODE(seen.st_mode) & 0o777
            digest = copy_file(source, self.to / name, mode, seen.st_size)
        self.files[name] = BackupFile(size=seen.st_size, sha256=digest, mode=mode)
        if now - seen.st_ctime_ns > SETTLED_NS:
            self._settled[name] = (seen.st_size, seen.st_ctime_ns, seen.st_ino)


def copy_file(source: BinaryIO, to: Path, mode: int, size: int) -> str:
    """Copy `size` bytes of a file, or all where it has fewer; returns their SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as write:
        while size > 0 and (piece := source.read(min(PIECE, size))):
            digest.update(piece)
            write.write(piece)
            size -= len(piece)
    return digest.hexdigest()
