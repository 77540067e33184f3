"""Downloaded adapters in a bounded directory, which several replicas of vLLM may share.

A directory that a replica uses is locked (`flock`, shared) for as long as it does: no other one deletes it, and a crash
releases it. Beside that lock is an exclusive one, for as long as a replica checks, repairs or downloads the directory.
Both files leave with it. Downloads appear whole or not at all (`stores.policies.fetch_files`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.stores.policies import COMPLETE_MARK, BlobStore, Policy, fetch_files, is_whole

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that has less room than the cache may take."""
_DOWNLOADS = f".{'[0-9a-f]' * 8}-*"
"""What `stores.policies` names directories that are being downloaded."""
_LOCKS = ".locks"
_MAKING = ".making"
"""Ends the name of the lock that excludes others who make the directory."""


@dataclass(frozen=True, slots=True)
class Held:
    """A verified directory that nothing deletes before `release`."""

    directory: Path
    release: Callable[[], None]


class AdapterCache:
    """At most `capacity` bytes of policies, beside what replicas download at the same time.

    Its methods block. Threads and processes may use one directory together.
    """

    def __init__(self, objects: BlobStore, directory: Path, capacity: int) -> None:
        self._objects = objects
        self._directory = directory
        self._capacity = capacity

    def hold(self, policy: Policy) -> Held:
        """The policy's files, from the object store unless they are here.

        Raises `NotFound`, `DigestMismatch`, `Rejected` for a policy that is larger than the cache, and `Unavailable`,
        also where all room is taken by policies in use.
        """
        lock = self._locked(policy.digest, fcntl.LOCK_SH)
        directory = self._directory / policy.digest
        try:
            os.utime(lock)
            with _open(self._locked(policy.digest + _MAKING, fcntl.LOCK_EX)):
                if (directory / COMPLETE_MARK).exists() and not is_whole(policy, directory):
                    shutil.rmtree(directory)
                if not (directory / COMPLETE_MARK).exists():
                    self._fetch(policy)
        except BaseException:
            os.close(lock)
            raise
        return Held(directory, lambda: _release(lock))

    def _fetch(self, policy: Policy) -> None:
        """Download a policy, whose making is locked; where the disk is full before the cache is, in the place of all
        that nothing uses."""
        needed = sum(file.size for file in policy.manifest.files)
        if needed > self._capacity:
            raise Rejected(f"its {needed:,} bytes are more than RATCHET_VLLM_CACHE_BYTES ({self._capacity:,})")
        self._clean(policy)
        kept = {directory: _bytes(directory) for directory in self._kept()}
        if self._evict(kept, sum(kept.values()) + needed - self._capacity) > 0:
            raise Unavailable(
                f"no room: all {len(kept)} adapters in the cache are in use; unload some, or raise"
                " RATCHET_VLLM_CACHE_BYTES",
                code="no_room",
            )
        try:
            fetch_files(self._objects, policy, self._directory)
        except OSError as error:
            kept = {directory: _bytes(directory) for directory in self._kept()}
            if error.errno not in FULL or self._evict(kept, sum(kept.values())) == sum(kept.values()):
                raise
            fetch_files(self._objects, policy, self._directory)

    def _clean(self, policy: Policy) -> None:
        """Delete what crashes left: downloads whose maker is gone, this policy's own before, and half deleted ones."""
        for partial in self._directory.glob(_DOWNLOADS):
            begins = partial.name[1:9]
            if policy.digest.startswith(begins) or not self._is_made(begins):
                shutil.rmtree(partial, ignore_errors=True)
        kept = set(self._kept())
        for lock in (self._directory / _LOCKS).iterdir():
            directory = self._directory / lock.name.removesuffix(_MAKING)
            if directory not in kept:  # half deleted, or never made
                self._deleted(directory)

    def _is_made(self, begins: str) -> bool:
        """Whether a replica makes a policy whose digest begins so: it keeps the lock for as long."""
        for path in (self._directory / _LOCKS).glob(f"{begins}*{_MAKING}"):
            try:
                os.close(self._locked(path.name, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                return True
        return False

    def _evict(self, kept: Mapping[Path, int], surplus: int) -> int:
        """Delete the least recently used policies that nothing uses, until no surplus is left; returns what is."""
        for directory in sorted(kept, key=self._used_at):
            if surplus <= 0:
                break
            if self._deleted(directory):
                surplus -= kept[directory]
        return surplus

    def _kept(self) -> Iterator[Path]:
        return (mark.parent for mark in self._directory.glob(f"*/{COMPLETE_MARK}"))

    def _deleted(self, directory: Path) -> bool:
        """Whether the directory is gone: one in use stays."""
        try:
            lock = self._locked(directory.name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with _open(lock):
            (directory / COMPLETE_MARK).unlink(missing_ok=True)  # first: what a crash leaves is not taken for whole
            shutil.rmtree(directory, ignore_errors=True)
            locks = self._directory / _LOCKS
            (locks / (directory.name + _MAKING)).unlink(missing_ok=True)  # only who has the other lock opens this one
            (locks / directory.name).unlink(missing_ok=True)
        return True

    def _used_at(self, directory: Path) -> float:
        try:
            return (self._directory / _LOCKS / directory.name).stat().st_mtime
        except OSError:
            return 0.0

    def _locked(self, name: str, how: int) -> int:
        """An open lock file of its own, locked: two of one process exclude each other too.

        Raises `BlockingIOError` where `how` does not wait. A file that was deleted meanwhile locks nothing: the one
        that has the name now does.
        """
        path = self._directory / _LOCKS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, how)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), path.stat()):
                        return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)


def _bytes(directory: Path) -> int:
    with suppress(OSError):  # deleted meanwhile
        return sum(file.stat().st_size for file in directory.iterdir())
    return 0


def _release(lock: int) -> None:
    with suppress(OSError):
        os.utime(lock)
    os.close(lock)


@contextmanager
def _open(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
