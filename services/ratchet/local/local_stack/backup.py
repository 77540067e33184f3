"""Copies of a stack's state at one moment: made whole or not at all, and checked by digest before one is put back.

A backup is a folder: `manifest.json` (every file with its size and SHA-256) and `state/`, the files themselves. Both
ways write beside the goal and rename at the end (`whole_folder.py`), so a process killed in between leaves a `.partial`
folder, which the next run beside it removes, and never half a backup or half a state. Files are copied, not linked: the
broker and the object store write into files that exist, and would change a linked copy.

A stack that runs is copied while it does, and then stands still while the copy catches up with what changed meanwhile:
its servers come back from that as from a kill of all processes at that moment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from ratchet.core.errors import ConfigError, Conflict, NotFound, Rejected
from ratchet.core.service.files import LOW_BYTES, free_bytes, shortage, write_whole
from ratchet.local.local_stack.orphans import is_running, living
from ratchet.local.local_stack.standstill import LONGEST_S, standing_still
from ratchet.local.local_stack.state import (
    PORTS_FILE,
    SECRETS_FILE,
    VERSION_FILE,
    AlreadyRunning,
    StackRecord,
    StateVersion,
    aside_name,
    occupied,
    read_record,
    read_version,
    require_in_place,
    require_readable,
    stack_lock,
)
from ratchet.local.local_stack.state_copy import BackupFile, OnProgress, StateCopy, copy_file
from ratchet.local.local_stack.state_tree import StateTree, read_tree
from ratchet.local.local_stack.whole_folder import becoming, held

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state"
KEPT = ("data", SECRETS_FILE, PORTS_FILE, VERSION_FILE)
"""What a stack cannot make again. Logs and the record of its processes are left out."""
RECEIPTS = Path("data", "rl_coordinator", "erasures")
"""The coordinator's receipts of erasures, and the key that signed them."""
BACKUP_LOCK = "backup.lock"
ROUNDS = 3
"""Of catching up with a stack that runs: each has less to copy than the one before, and a start takes one."""


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
    """Copy the state of a stack into the new folder `target`. One that runs stands still for the end of it.

    Raises `NotFound` where there is no state, `Conflict` where `target` exists, another backup is being made, only
    parts of a stack run, or it does not stand still for long enough, `ConfigError` where the disk has no room or the
    state has a link to nothing, `Unavailable` where a process does not stop, and `OSError`.
    """
    directory, target = directory.resolve(), target.absolute()
    _to_copy(directory, target)
    with _alone(directory), becoming(target) as partial:
        copy = StateCopy(directory, partial / STATE, KEPT, on_progress)
        made_at = _copy_at_rest(copy)
        manifest = Manifest(
            format=FORMAT,
            made_at=made_at,
            version=read_version(directory),
            folders=copy.folders,
            links=copy.links,
            files=copy.files,
        )
        manifest = msgspec.structs.replace(manifest, digest=_digest_of(manifest))
        write_whole(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def planned_backup(directory: Path, target: Path) -> tuple[int, int]:
    """How many files a backup would have, and their bytes. Raises what `back_up` does, and copies nothing."""
    tree = _to_copy(directory.resolve(), target.absolute())
    return len(tree.files), tree.size


def _to_copy(directory: Path, target: Path) -> StateTree:
    """The files of a stack, for which `target` has room."""
    if not (directory / "data").is_dir():
        raise NotFound(f"no state of a stack in {directory}: name its folder with --dir or RATCHET_DIR")
    if target.exists():
        raise Conflict(f"{target} exists: name a new folder")
    if directory in target.parents:
        raise ConfigError(f"{target} lies inside the state that it is to hold")
    tree = read_tree(directory, KEPT, moving=_running(directory) is not None)
    _require_room(target.parent, tree.size)
    return tree


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Two backups would end each other's standstill."""
    try:
        with held(directory / BACKUP_LOCK):
            yield
    except BlockingIOError as error:
        raise Conflict(f"another backup of {directory} is being made: wait for its end") from error


def _copy_at_rest(copy: StateCopy) -> datetime:
    """Fill the copy with the state of one moment, which is returned."""
    for _ in range(ROUNDS):
        record = _running(copy.directory)
        if record is None:
            with _stopped(copy.directory):
                copy.catch_up()
                return datetime.now(UTC)
        for _ in range(2):  # the second takes what has changed during the first, which may be long
            copy.catch_up(moving=True)
        with standing_still(record.stack_id) as still:
            if copy.catch_up(until=still.until) and _is_one_stack(record, copy.directory) and still.holds():
                return still.began_at
    raise Conflict(
        f"{copy.directory} was not copied within {ROUNDS} standstills of {LONGEST_S:g} s: its members start again and"
        " again, or the disk of the copy is too slow for what they write. `ratchet down` stops it for a backup"
    )


def _running(directory: Path) -> StackRecord | None:
    """The stack that runs there. Raises `Conflict` where only parts of one do, `AlreadyRunning` for other holders."""
    try:
        with _stopped(directory):
            return None
    except AlreadyRunning:
        record = read_record(directory)
        if record is None or not is_running(record):
            raise
        return record


def _is_one_stack(record: StackRecord, directory: Path) -> bool:
    """Whether the stack is still the recorded one: it has not been stopped, or started anew."""
    now = _running(directory)
    return now is not None and now.stack_id == record.stack_id


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

    A state that is there is refused, or with `replace` set aside under the path that is returned; it is never removed,
    and its receipts of erasures go with the state that takes its place, whose coordinator then carries them out again.
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
            if (directory / RECEIPTS).is_dir():
                shutil.copytree(directory / RECEIPTS, partial / RECEIPTS, dirs_exist_ok=True)
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


def _put_back(manifest: Manifest, state: Path, partial: Path, on_progress: OnProgress | None) -> None:
    """Fill `partial` with the state. Raises `Rejected` for a damaged backup."""
    for name in manifest.folders:
        (partial / name).mkdir(parents=True)
    done = 0
    for name, file in manifest.files.items():
        with _opened(state / name, name, file.size) as source:
            digest = copy_file(source, partial / name, file.mode, file.size)
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


def _require_room(folder: Path, size: int) -> None:
    missing = shortage(free_bytes(folder), size + LOW_BYTES, folder)
    if missing is not None:
        raise ConfigError(f"{missing} for the copy")
