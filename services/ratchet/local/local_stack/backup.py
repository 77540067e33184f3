"""Copies of a stopped stack's state: made whole or not at all, and checked by digest before one is put back.

A backup is a folder: `manifest.json` (every file with its size and SHA-256) and `state/`, the files themselves. Both
ways write beside the goal and rename at the end (`whole_folder.py`), so a process killed in between leaves a `.partial`
folder, which the next run beside it removes, and never half a backup or half a state. Files are copied, not linked: the
broker and the object store write into files that exist, and would change a linked copy.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from ratchet.core.errors import ConfigError, Conflict, NotFound, Rejected
from ratchet.core.service.files import LOW_BYTES, free_bytes, shortage, write_whole
from ratchet.local.local_stack.orphans import living
from ratchet.local.local_stack.state import (
    PORTS_FILE,
    SECRETS_FILE,
    VERSION_FILE,
    StateVersion,
    aside_name,
    occupied,
    read_record,
    read_version,
    require_in_place,
    require_readable,
    stack_lock,
)
from ratchet.local.local_stack.state_tree import StateTree, read_tree
from ratchet.local.local_stack.whole_folder import becoming

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state"
KEPT = ("data", SECRETS_FILE, PORTS_FILE, VERSION_FILE)
"""What a stack cannot make again. Logs and the record of its processes are left out."""
PIECE = 1 << 20

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are copied, and all."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    sha256: str
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. Paths are relative to the state directory."""

    format: int
    made_at: datetime
    version: StateVersion | None
    folders: list[str]
    links: dict[str, str]
    """Path -> the path in the state that it points to. What a state links to elsewhere is copied as if it lay there."""
    files: dict[str, BackupFile]
    digest: str = ""
    """SHA-256 of the manifest without this member."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def back_up(directory: Path, target: Path, on_progress: OnProgress | None = None) -> Manifest:
    """Copy the state of a stack that does not run into the new folder `target`.

    Raises `NotFound` where there is no state, `AlreadyRunning` or `Conflict` where the stack or a part of it runs, or
    `target` exists, `ConfigError` where the disk has no room or the state has a link to nothing, and `OSError`.
    """
    directory, target = directory.resolve(), target.absolute()
    with _to_copy(directory, target) as tree:
        size = tree.size
        with becoming(target) as partial:
            manifest = _copied(directory, tree, partial / STATE, lambda done: on_progress and on_progress(done, size))
            write_whole(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def planned_backup(directory: Path, target: Path) -> tuple[int, int]:
    """How many files a backup would have, and their bytes. Raises what `back_up` does, and copies nothing."""
    with _to_copy(directory.resolve(), target.absolute()) as tree:
        return len(tree.files), tree.size


@contextmanager
def _to_copy(directory: Path, target: Path) -> Iterator[StateTree]:
    """The files of a stopped stack, for which `target` has room."""
    if not (directory / "data").is_dir():
        raise NotFound(f"no state of a stack in {directory}")
    if target.exists():
        raise Conflict(f"{target} exists: name a new folder")
    if directory in target.parents:
        raise ConfigError(f"{target} lies inside the state that it is to hold")
    with _stopped(directory):
        tree = read_tree(directory, KEPT)
        _require_room(target.parent, tree.size)
        yield tree


def read_manifest(backup: Path) -> Manifest:
    """What a backup holds. Raises `NotFound` or `Rejected`."""
    try:
        manifest = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{backup} is not a backup: it has no {MANIFEST}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"the backup is damaged or was changed: {backup / MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise Rejected(f"{backup} has the format {manifest.format}; this program reads {FORMAT}")
    if "data" not in manifest.folders:
        raise Rejected(f"the backup is damaged or was changed: {backup / MANIFEST} names no folder data")
    names = (*manifest.folders, *manifest.files, *manifest.links, *manifest.links.values())
    strange = next((name for name in names if not _in_a_state(name, manifest)), None)
    if strange is not None:
        raise Rejected(f"{backup} names a file outside of a state: {strange!r}")
    if manifest.digest != _digest_of(manifest):
        raise Rejected(f"the backup was changed: {backup / MANIFEST} is not the one that was written")
    return manifest


def _digest_of(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, digest=""))).hexdigest()


def restore(
    backup: Path, directory: Path, *, replace: bool = False, on_progress: OnProgress | None = None
) -> tuple[Manifest, Path | None]:
    """Make `directory` the state that a backup holds, after every file of it has proved whole.

    A state that is there is refused, or with `replace` set aside under the path that is returned; it is never removed.
    Raises `NotFound`, `Rejected` for a damaged backup, `AlreadyRunning`, `Conflict`, `ConfigError` and `OSError`.
    """
    backup, directory = backup.resolve(), directory.resolve()
    manifest = read_manifest(backup)
    require_readable(manifest.version, backup)
    _require_free(directory, replace=replace)
    _require_room(directory.parent, manifest.size)
    with _stopped(directory):
        _require_free(directory, replace=replace)
        aside = aside_name(directory, datetime.now(UTC)) if occupied(directory) else None
        with becoming(directory, aside) as partial:
            _put_back(manifest, backup / STATE, partial, on_progress)
    return manifest, aside


def _require_free(directory: Path, *, replace: bool) -> None:
    require_in_place(directory)
    if occupied(directory) and not replace:
        raise Conflict(f"{directory} holds the state of a stack: name another --dir, or --replace sets it aside")


def _in_a_state(name: str, manifest: Manifest) -> bool:
    """Whether a name leads to where a state has its files, and nowhere else: also not through a link."""
    path = Path(name)
    kept = path.parts[:1] in {(first,) for first in KEPT} and ".." not in path.parts and "\0" not in name
    return kept and name == str(path) and not any(str(parent) in manifest.links for parent in path.parents)


@contextmanager
def _stopped(directory: Path) -> Iterator[None]:
    """Keep a stack from starting. Raises `AlreadyRunning`, or `Conflict` where processes of a killed one still run."""
    with stack_lock(directory):
        record = read_record(directory)
        left = living(record) if record is not None else {}
        if left:
            raise Conflict(f"processes of the stack in {directory} still run ({', '.join(left)}): run `ratchet down`")
        yield


def _copied(directory: Path, tree: StateTree, to: Path, on_progress: Callable[[int], object]) -> Manifest:
    files: dict[str, BackupFile] = {}
    to.mkdir()
    for name in tree.folders:
        (to / name).mkdir()
    done = 0
    for name, path in tree.files.items():
        with path.open("rb") as source:
            seen = os.fstat(source.fileno())
            mode = stat.S_IMODE(seen.st_mode) & 0o777
            digest = _copy(source, to / name, mode, seen.st_size)
        files[name] = BackupFile(size=seen.st_size, sha256=digest, mode=mode)
        done += files[name].size
        on_progress(done)
    manifest = Manifest(
        format=FORMAT,
        made_at=datetime.now(UTC),
        version=read_version(directory),
        folders=tree.folders,
        links=tree.links,
        files=files,
    )
    return msgspec.structs.replace(manifest, digest=_digest_of(manifest))


def _put_back(manifest: Manifest, state: Path, partial: Path, on_progress: OnProgress | None) -> None:
    """Fill `partial` with the state. Raises `Rejected` for a damaged backup."""
    for name in manifest.folders:
        (partial / name).mkdir(parents=True)
    done = 0
    for name, file in manifest.files.items():
        with _opened(state / name, name, file.size) as source:
            digest = _copy(source, partial / name, file.mode, file.size)
        if digest != file.sha256:
            raise Rejected(f"the backup is damaged: {name} is not the file that was copied")
        done += file.size
        if on_progress is not None:
            on_progress(done, manifest.size)
    for name, target in manifest.links.items():
        (partial / name).symlink_to(os.path.relpath(target, Path(name).parent))


@contextmanager
def _opened(path: Path, name: str, size: int) -> Iterator[BinaryIO]:
    """A file of a backup. Raises `Rejected` for what is missing, no file (a link, a pipe) or of another size."""
    try:
        # A pipe is opened without waiting for its writer, and a link not at all.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise Rejected(f"the backup is damaged: {name} is missing") from error
    except (OSError, ValueError) as error:
        raise Rejected(f"the backup is damaged: {name} cannot be read: {error}") from error
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size != size:
        os.close(descriptor)
        raise Rejected(f"the backup is damaged: {name} is not the file that was copied")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _copy(source: BinaryIO, to: Path, mode: int, size: int) -> str:
    """Copy `size` bytes of a file to the disk, or all where it has fewer; returns their SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as write:
        while size > 0 and (piece := source.read(min(PIECE, size))):
            digest.update(piece)
            write.write(piece)
            size -= len(piece)
        write.flush()
        os.fsync(write.fileno())
    return digest.hexdigest()


def _require_room(folder: Path, size: int) -> None:
    missing = shortage(free_bytes(folder), size + LOW_BYTES, folder)
    if missing is not None:
        raise ConfigError(f"{missing} for the copy")
