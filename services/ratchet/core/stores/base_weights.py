"""What a base model in a directory is: a digest of its weights, so that an adapter is never put on other ones.

Reading all weights takes seconds per gigabyte. So the digest of each file is remembered beside the cached models for as
long as the file's state stays the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock

import msgspec

from ratchet.core.contract.policy_manifest import ArtifactFile
from ratchet.core.errors import DigestMismatch, Unavailable
from ratchet.core.service.files import FileState, sha256_of, state_of, write_whole

PATTERNS = ("config.json", "*.safetensors", "*.bin")
"""Files that decide what a model computes. Those that decide how it reads text have a digest of their own."""
REMEMBERED = "base-weights.json"
"""Beside the models of a cache: what was read once."""
_REMEMBERING = Lock()
"""Threads of one process stage a file under one name."""


class _Known(msgspec.Struct, frozen=True):
    """A file as it was when it was read."""

    state: FileState
    sha256: str


def weights_digest(directory: Path, cache: Path) -> str | None:
    """sha256 over names and digests of a model's files; None where the directory holds no weights.

    `cache`: the directory that remembers; where it cannot be written, weights are read each time. Blocking: run it in a
    thread. Raises `OSError`, and `Unavailable` where a file changes while it is read.
    """
    entries = {file for pattern in PATTERNS for file in directory.resolve().glob(pattern)}
    files = sorted(file for file in entries if file.is_file())
    if all(file.suffix == ".json" for file in files):
        return None
    memory = cache / REMEMBERED
    known = _remembered(memory)
    current = {str(file): _read(file, known.get(str(file))) for file in files}
    if current.items() - known.items():
        # Of two processes that write at a time one is forgotten, and reads its files again.
        with _REMEMBERING, suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            kept = {name: file for name, file in _remembered(memory).items() if Path(name).is_file()}
            write_whole(memory, msgspec.json.encode(kept | current))
    return _whole({Path(name).name: file.sha256 for name, file in current.items()})


def stored_weights_digest(files: Iterable[ArtifactFile]) -> str | None:
    """What `weights_digest` gives for a directory with these files of a manifest."""
    deciding = {file.name: file.sha256 for file in files if any(fnmatch(file.name, pattern) for pattern in PATTERNS)}
    return None if all(name.endswith(".json") for name in deciding) else _whole(dict(sorted(deciding.items())))


def _whole(files: Mapping[str, str]) -> str:
    """sha256 over names and digests."""
    whole = hashlib.sha256()
    for name, sha256 in files.items():
        whole.update(f"{name}\0{sha256}\0".encode())
    return whole.hexdigest()


def require_same_weights(name: str, actual: str | None, expected: str | None) -> None:
    """Raise `DigestMismatch` where both digests of the base model `name` are known, and differ."""
    if actual is not None and expected is not None and actual != expected:
        raise DigestMismatch(
            f"the base model {name} has other weights here than where the adapter was trained: {actual[:8]}, not"
            f" {expected[:8]}"
        )


def _read(file: Path, before: _Known | None) -> _Known:
    state = state_of(file)
    if before is not None and before.state == state:
        return before
    sha256 = sha256_of(file)
    if state_of(file) != state:
        raise Unavailable(f"{file} changes while it is read")
    return _Known(state, sha256)


def _remembered(memory: Path) -> dict[str, _Known]:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, _Known])
    return {}
