"""What a base model in a directory is: a digest of its weights, so that an adapter is never put on other ones.

Reading all weights takes seconds per gigabyte. So the digest of each file is remembered beside the cached models for as
long as the file's size, time of change and inode stay the same.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from ratchet.errors import DigestMismatch
from ratchet.service.files import write_whole

PATTERNS = ("config.json", "*.safetensors", "*.bin")
"""Files that decide what a model computes. Those that decide how it reads text have a digest of their own."""
REMEMBERED = "base-weights.json"
"""Beside the models of a cache: what was read once."""


class _Known(msgspec.Struct, frozen=True):
    """A file as it was when it was read."""

    state: tuple[int, int, int]
    """Bytes, time of change in nanoseconds, inode."""
    sha256: str


def weights_digest(directory: Path, cache: Path) -> str | None:
    """sha256 over names and digests of a model's files; None where the directory holds no weights.

    `cache`: the directory that remembers. Blocking: run it in a thread. Raises `OSError`.
    """
    files = sorted({file for pattern in PATTERNS for file in directory.resolve().glob(pattern)})
    if all(file.suffix == ".json" for file in files):
        return None
    memory = cache / REMEMBERED
    known = _remembered(memory)
    current = {str(file): _read(file, known.get(str(file))) for file in files}
    if current.items() - known.items():
        cache.mkdir(parents=True, exist_ok=True)
        # Of two processes that write at a time one is forgotten, and reads its files again.
        kept = {name: file for name, file in known.items() if Path(name).is_file()}
        write_whole(memory, msgspec.json.encode(kept | current))
    whole = hashlib.sha256()
    for name, file in current.items():
        whole.update(f"{Path(name).name}\0{file.sha256}\0".encode())
    return whole.hexdigest()


def require_same_weights(name: str, actual: str | None, expected: str | None) -> None:
    """Raise `DigestMismatch` where both digests of the base model `name` are known, and differ."""
    if actual is not None and expected is not None and actual != expected:
        raise DigestMismatch(
            f"the base model {name} has other weights here than where the adapter was trained: {actual[:8]}, not"
            f" {expected[:8]}"
        )


def _read(file: Path, before: _Known | None) -> _Known:
    status = file.stat()
    state = (status.st_size, status.st_mtime_ns, status.st_ino)
    if before is not None and before.state == state:
        return before
    with file.open("rb") as content:
        return _Known(state, hashlib.file_digest(content, "sha256").hexdigest())


def _remembered(memory: Path) -> dict[str, _Known]:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, _Known])
    return {}
