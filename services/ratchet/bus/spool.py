"""A bounded queue on disk for messages that could not be published: it survives restarts and drains in order.

Layout of the directory: `lock` (held while open), `cursor` (up to which place, and how many, records are published),
`appended` (how many were ever kept), and numbered segments. A segment is a sequence of frames: length and CRC-32 of the
payload, then the payload (MessagePack of a `Record`). Where bytes were lost or altered, reading goes on at the next
whole frame; what the counts know of and no segment holds is damage. A directory is its owner's alone: 0700, files 0600.

Durability: `append` hands the frame to the operating system before it returns, so a killed process loses nothing. A
segment is synced to the disk when it is full and on `close`; a power failure may lose the newest, unsynced segment.
Delivery is at least once: a process killed between a publish and the cursor's write publishes that batch again, under
the same event ids.

SQLite would be less code (WAL, `synchronous=NORMAL`, a CRC in each row), and was tried: one altered byte in the log
of a killed process cost 204 of 400 records in the median, where a frame costs one; a full disk refused the drain as
well; keeping a record took 40 us of processor time, where a frame takes 10.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from ratchet.bus.envelope import Record
from ratchet.bus.message import unpack
from ratchet.core.errors import ConfigError

FRAME = struct.Struct("<II")
COUNT = struct.Struct("<Q")
START = (0, 0)
"""Before the first record of the first segment."""
_RECORD = re.compile(rb"\x93[\xa0-\xbf\xd9\xda]")
"""How MessagePack begins a list of three of which the first is a text: a payload."""
SEGMENTS = 8
"""A spool is cut into about this many segments: disk space is given back one segment at a time."""
MAX_SEGMENT_BYTES = 4 * 1024 * 1024
SLOTS = 64
"""How many processes may share one parent directory (see `Spool.claim`)."""


Publish = Callable[[Sequence[Record]], Awaitable[None]]
"""Publishes records in order; returns when all are durable, raises when they are not."""


class Spool:
    """Records wait here, oldest first. One process and one thread own a directory; `append` may run during a `drain`.

    A producer that spools must keep appending until `pending` is 0, or its newer messages overtake the older ones.
    """

    directory: Path | None
    """Where the records lie; None where none can."""
    pending = 0
    """Records not yet published."""
    damaged = 0
    """Records that were kept and are gone: altered, cut off or deleted on disk; also those of `orphans`."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Open `directory`, made if absent. Raises `ConfigError` if it is in use, `OSError` if it cannot be used."""
        _make_private(directory)
        self.directory = self._directory = directory
        self._parent: Path | None = None
        self._lock = _hold(directory / "lock")
        self._max_bytes = max_bytes
        self._segment_bytes = max(1, min(MAX_SEGMENT_BYTES, max_bytes // SEGMENTS))
        self._writer: IO[bytes] | None = None
        self._sizes = _sizes_in(directory)
        noted = _cursor_in(directory)
        self._cursor = noted.position if noted.can_be_of(self._sizes) else START  # at the price of duplicates
        self._next = max([self._cursor[0], *self._sizes]) + 1
        behind = 0
        for _, end in self._frames(self._count_damage):
            self.pending += 1
            behind += end > noted.position
        self._count = _private_file(directory / "appended", os.O_RDWR)
        self._count_missing(noted, behind)
        if self.pending == 0:
            self._forget_segments(before=self._next)

    @classmethod
    def claim(cls, parent: Path, max_bytes: int) -> Spool:
        """Open the first directory `parent/0`, `parent/1`, ... that no other process holds.

        A restarted process so takes over what an earlier one left behind; see also `orphans`. Raises `ConfigError` if
        all are in use, or if another user could put records there, and `OSError` if nothing can be written there.
        """
        _make_private(parent)
        for slot in range(SLOTS):
            try:
                claimed = cls(parent / str(slot), max_bytes)
            except ConfigError:
                continue
            claimed._parent = parent
            return claimed
        raise ConfigError(f"all {SLOTS} spool directories under {parent} are in use by other processes")

    def orphans(self) -> Generator[Spool]:
        """Spools beside this claimed one, and in their parent, that hold records and that no process holds.

        Their processes came back no more, or with fewer of their kind, or claimed no directory of their own yet. Each
        is open while it is handed out, and closed afterwards.
        """
        others = [self._parent, *sorted(self._parent.iterdir())] if self._parent is not None else []
        for directory in others:
            if directory == self._directory or not any(directory.glob("*.segment")):
                continue
            try:
                orphan = Spool(directory, self._max_bytes)
            except (ConfigError, OSError):
                continue
            try:
                yield orphan
            finally:
                self.damaged += orphan.damaged
                orphan.close()

    @property
    def size(self) -> int:
        """Bytes of records on disk: never more than `max_bytes`."""
        return sum(self._sizes.values())

    def append(self, record: Record) -> bool:
        """Keep `record` until it is drained. False when there is no room for it."""
        payload = msgspec.msgpack.encode(record)
        frame = FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        if self.size + len(frame) > self._max_bytes or not self._write(frame):
            return False
        self.pending += 1
        self._appended += 1
        self._note_appended()
        return True

    async def drain(self, publish: Publish, batch: int = 64, batch_bytes: int = 8 * 1024 * 1024) -> int:
        """Publish everything in order and return how much that was; no more than `batch_bytes` at once, or one record.

        A batch is forgotten when `publish` has returned. Errors of `publish` propagate; its batch stays first in line.
        """
        drained = 0
        while frames := self._first_frames(batch, batch_bytes):
            await publish([record for record, _ in frames])
            drained += len(frames)
            self.pending -= len(frames)
            self._advance(frames[-1][1])
        if self.pending:  # what was appended cannot be read any more
            self.damaged += self.pending
            self.pending = 0
            self._advance(self._cursor)
        return drained

    def close(self) -> None:
        """Sync what was appended and let another process have the directory."""
        self._close_segment(sync=True)
        self._count.close()
        self._lock.close()

    def _write(self, frame: bytes) -> bool:
        """Append one frame. After a short write the segment is left as it is: a reader skips its cut-off end."""
        try:
            writer = self._segment()
            written = writer.write(frame)
        except OSError:
            return False
        self._sizes[self._next - 1] += written
        if 0 < written < len(frame):
            self._close_segment(sync=False)
        return written == len(frame)

    def _segment(self) -> IO[bytes]:
        if self._writer is not None and self._sizes[self._next - 1] < self._segment_bytes:
            return self._writer
        self._close_segment(sync=True)
        self._writer = _private_file(_segment_in(self._directory, self._next), os.O_WRONLY | os.O_APPEND)
        self._sizes[self._next] = 0
        self._next += 1
        return self._writer

    def _close_segment(self, *, sync: bool) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with writer:
            if sync:
                os.fsync(writer.fileno())

    def _first_frames(self, most: int, most_bytes: int) -> list[tuple[Record, tuple[int, int]]]:
        frames: list[tuple[Record, tuple[int, int]]] = []
        size = 0
        for record, position in islice(self._frames(), most):
            size += record.size
            if frames and size > most_bytes:
                break
            frames.append((record, position))
        return frames

    def _frames(self, on_damage: Callable[[], object] = bool) -> Iterator[tuple[Record, tuple[int, int]]]:
        """Records behind the cursor, each with the position after it (segment, offset)."""
        return _frames_in(self._directory, self._sizes, self._cursor, on_damage)

    def _count_damage(self) -> None:
        self.damaged += 1

    def _count_missing(self, noted: _Cursor, behind: int) -> None:
        """Of the records that are kept and not published, `behind` can be read: the others count as damaged.

        A spool of an older version has no counts: its unreadable places are counted, a record or more at each.
        """
        count = self._count.read(COUNT.size)
        if len(count) == COUNT.size and noted.published is not None:
            self.damaged = max(self.damaged, COUNT.unpack(count)[0] - noted.published - behind)
        goes_on = self._cursor == noted.position
        self._published = noted.published if goes_on and noted.published else 0
        self._appended = self.pending + self._published
        self._note_appended()
        if not goes_on:
            (self._directory / "cursor").unlink(missing_ok=True)  # the segments to come must not make it readable

    def _note_appended(self) -> None:
        with suppress(OSError):  # too low a count hides damage, and invents none
            self._count.seek(0)
            self._count.write(COUNT.pack(self._appended))

    def _advance(self, position: tuple[int, int]) -> None:
        """Everything up to `position` is published: note that first, then delete the segments that are done.

        They are deleted also when a full disk takes no note: it is their room that it lacks. What they held counts then
        as never appended.
        """
        self._cursor = position
        published = self._appended - self.pending
        try:
            staged = self._directory / "cursor.new"
            with _private_file(staged, os.O_WRONLY | os.O_TRUNC) as file:
                file.write(f"{position[0]} {position[1]} {published}".encode())
            staged.replace(self._directory / "cursor")
            self._published = published
        except OSError:
            self._appended = self._published + self.pending
            self._note_appended()
            raise
        finally:
            if self.pending == 0:
                self._close_segment(sync=False)
            self._forget_segments(before=self._next if self.pending == 0 else position[0])

    def _forget_segments(self, before: int) -> None:
        for number in [n for n in self._sizes if n < before]:
            _segment_in(self._directory, number).unlink(missing_ok=True)
            del self._sizes[number]


class NoSpool(Spool):
    """Where no directory can be written: keeps nothing."""

    def __init__(self) -> None:
        self.directory = self._parent = None
        self._sizes = {}

    def append(self, record: Record) -> bool:  # noqa: ARG002 - a record is refused whatever it is
        return False

    async def drain(
        self,
        publish: Publish,  # noqa: ARG002 - there is nothing to publish
        batch: int = 64,  # noqa: ARG002
        batch_bytes: int = 0,  # noqa: ARG002
    ) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


def waiting_in(directory: Path) -> int:
    """Records in a spool that no process holds, counted from outside; 0 where one does, and where nothing can be read.

    It changes nothing, and holds the lock for no longer than it takes to see that it is free: a process that claims the
    directory meanwhile gets it.
    """
    try:
        if _is_held(directory / "lock"):
            return 0
        sizes = _sizes_in(directory)
        noted = _cursor_in(directory)
        cursor = noted.position if noted.can_be_of(sizes) else START
        return sum(1 for _ in _frames_in(directory, sizes, cursor, bool))
    except OSError:  # another user's, or a process has taken it and drained it meanwhile
        return 0


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            if sys.platform == "win32":
                lock.read(1)  # of a locked byte it is refused
            else:
                import fcntl  # noqa: PLC0415 - exists on that platform only

                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def _sizes_in(directory: Path) -> dict[int, int]:
    """By number, the bytes of each segment."""
    return {int(path.stem): path.stat().st_size for path in directory.glob("*.segment")}


def _segment_in(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}.segment"


class _Cursor(NamedTuple):
    """What a drain has noted."""

    position: tuple[int, int] = (-1, 0)
    """Segment and offset up to which everything is published; what cannot be read is no place of any."""
    published: int | None = None
    """Records published since the spool was made; None where older versions did not count them."""

    def can_be_of(self, sizes: Mapping[int, int]) -> bool:
        """Whether a drain of these segments can have left it: another would pass over what was never published."""
        number, offset = self.position
        return 0 <= number <= max(sizes, default=number) and 0 <= offset <= sizes.get(number, offset)


def _cursor_in(directory: Path) -> _Cursor:
    try:
        number, offset, *counted = map(int, (directory / "cursor").read_text().split())
    except FileNotFoundError:
        return _Cursor(START, 0)
    except ValueError:
        return _Cursor()
    return _Cursor((number, offset), *counted) if len(counted) < 2 else _Cursor()


def _frames_in(
    directory: Path, sizes: Mapping[int, int], cursor: tuple[int, int], on_damage: Callable[[], object]
) -> Iterator[tuple[Record, tuple[int, int]]]:
    """Records behind the cursor, each with the position after it (segment, offset)."""
    first, start = cursor
    for number in sorted(n for n in sizes if n >= first):
        for record, end in _read_segment(_segment_in(directory, number), start if number == first else 0, on_damage):
            yield record, (number, end)


def _read_segment(path: Path, start: int, on_damage: Callable[[], object]) -> Iterator[tuple[Record, int]]:
    """Records of whole, undamaged frames from offset `start`, each with the offset after it. Damage is passed over."""
    try:
        with path.open("rb") as segment:
            segment.seek(start)
            content = segment.read()
    except FileNotFoundError:
        on_damage()
        return
    offset = 0
    while offset < len(content):
        frame = _frame_at(content, offset)
        if frame is None:
            on_damage()
            offset = _next_frame(content, offset + 1)
            continue
        record, offset = frame
        yield record, start + offset


def _frame_at(content: bytes, offset: int) -> tuple[Record, int] | None:
    """The record of the frame at `offset` and the offset after it; None where there is no whole frame."""
    body = offset + FRAME.size
    if body > len(content):
        return None
    length, checksum = FRAME.unpack_from(content, offset)
    if body + length > len(content) or zlib.crc32(memoryview(content)[body : body + length]) != checksum:
        return None
    try:
        return unpack(content[body : body + length], Record), body + length
    except msgspec.DecodeError:
        return None


def _next_frame(content: bytes, start: int) -> int:
    """Offset of the next whole frame, the end where there is none. A frame is recognised by how its payload begins."""
    for candidate in _RECORD.finditer(content, start + FRAME.size):
        offset = candidate.start() - FRAME.size
        if _frame_at(content, offset) is not None:
            return offset
    return len(content)


def _make_private(directory: Path) -> None:
    """Make `directory`, or take one that is ours, for its owner alone. Raises `ConfigError` for another user's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = directory.lstat()
    if sys.platform == "win32":
        return
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        raise ConfigError(f"spool directory {directory} belongs to another user")
    if stat.S_IMODE(state.st_mode) & 0o077:
        directory.chmod(0o700)


def _private_file(path: Path, flags: int) -> IO[bytes]:
    """A file, made if absent, that its owner alone reads; what is written is the operating system's at once."""
    mode = "r+b" if flags & os.O_RDWR else "wb"
    return os.fdopen(os.open(path, flags | os.O_CREAT, 0o600), mode, buffering=0)


def _hold(path: Path) -> IO[bytes]:
    """Lock `path` for as long as the returned file is open, also against other instances in this process."""
    lock = _private_file(path, os.O_WRONLY)
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415  exists on that platform only

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(f"spool directory {path.parent} is in use by another process") from error
    return lock
