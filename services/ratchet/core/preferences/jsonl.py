"""A file of JSON lines that many processes append to at once without losing a line."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.errors import NotFound, Rejected

PRIVATE = 0o600
"""Only this user reads what people wrote to an agent."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its number from 1, and what it holds or why that cannot be read."""

    number: int
    record: object = None
    problem: str | None = None


def append(path: Path, records: Sequence[JsonObject]) -> None:
    """Add the records as lines at the end, all or none of them as far as any reader that takes the lock can see.

    Writers take turns by a lock on the file, and each writes where the file then ends (`O_APPEND`). A line that a
    crash cut short is closed first, so that it spoils no other. Raises `OSError`.
    """
    if not records:
        return
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        rest = b"\n" + lines if torn else lines
        while rest:  # one call is enough but on a full disk or an interrupted network file system
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines that hold something. Raises `NotFound` or `Rejected`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise Rejected(f"{path} is a directory, not a file") from error
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error}") from error
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                yield Line(number, msgspec.json.decode(line))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                yield Line(number, problem=f"not JSON: {error}")
