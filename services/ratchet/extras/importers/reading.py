"""Reads the records of a file, or of all files of a folder, one after the other and never a whole file at once.

JSON lines, JSON lists (one, or several joined), one JSON object, each also as `.gz`; Parquet; Arrow files as Hugging
Face's `datasets` writes them. A record that cannot be read is an `Unreadable` in its place, so that the others are
read.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ratchet.core.errors import NotFound, Rejected

MOST_BYTES = 64 << 20
"""Longest record that is read. A longer one could not be published: a message is at most some MB."""
PIECE = 1 << 20
"""How much of a JSON list is read at a time."""
ROWS = 256
"""Rows of a table that are read together."""
TABLES = (".parquet", ".arrow")
TEXTS = (".json", ".jsonl", ".ndjson")
TOO_DEEP = "its values are nested too deeply"
PAGE = {"data", "meta", "object", "first_id", "last_id", "has_more"}
"""Members of a page of a list, as HTTP APIs answer."""
BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a record that cannot be read."""

    reason: str
    ends: bool = False
    """Nothing after it can be read either."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record."""

    index: int
    """Its place among all records, from 0."""
    where: str
    """Where people find it: `line 7`, in a folder `scores/a.jsonl line 7`."""
    value: object
    size: int = 0
    """Bytes that it takes, about."""


@dataclass(frozen=True, slots=True)
class Part:
    """A record of one file: where it is, what it holds, and how far the file has been read with it."""

    where: str
    number: int
    """That of its line; where records are no lines, its own. The first is 1."""
    value: object
    position: int = 0


class Records:
    """The records below a path. Can be read more than once. Raises `NotFound` or `Rejected` for a path without any."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._files = _files(path)
        self.size = sum(file.stat().st_size for file in self._files)
        """Bytes on the disk."""
        self.read = 0
        """How many of them have been read."""

    def __iter__(self) -> Iterator[Record]:
        """One record after the other. Raises `Rejected` at the end where not one of them could be read."""
        self.read, index, before = 0, 0, 0
        readable, problem = False, ""
        for file in self._files:
            name = f"{file.relative_to(self._path)} " if self._path.is_dir() else ""
            for part in parts_of(file, self._most_bytes):
                size, self.read = before + part.position - self.read, before + part.position
                if isinstance(part.value, Unreadable):
                    problem = problem or f"{part.where}: {part.value.reason}"
                else:
                    readable = True
                yield Record(index, name + part.where, part.value, size)
                index += 1
            before += file.stat().st_size
        self.read = self.size
        if not readable:
            raise Rejected(f"{self._path} is not JSON: {problem}" if problem else f"{self._path} is empty")


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return (path,)
    if not path.is_dir():
        hub = (
            ". A data set of the Hugging Face hub is downloaded first, where the hub can be reached: "
            "`hf download NAME --repo-type dataset --local-dir DIR`"
        )
        is_name = len(path.parts) <= 2 and not path.suffix and not path.is_absolute()
        raise NotFound(f"no such file: {path}" + (hub if is_name else ""))
    files = sorted(file for file in path.rglob("*") if file.is_file() and _suffix(file) in (*TEXTS, *TABLES))
    # What tools keep beside the data: the state of a data set, the cache of a download.
    files = [file for file in files if not file.name.startswith(("dataset_info", "state.", "dataset_dict"))]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise Rejected(f"{path} holds no file that ends with {', '.join((*TEXTS, *TABLES))}")
    return files


def _suffix(file: Path) -> str:
    return (Path(file.stem).suffix if file.suffix == ".gz" else file.suffix).lower()


def parts_of(file: Path, most_bytes: int = MOST_BYTES) -> Iterator[Part]:
    """The records of one file. Raises `Rejected`."""
    try:
        if _suffix(file) in TABLES:
            yield from _rows(file)
            return
        with file.open("rb") as raw:
            blob = cast("IO[bytes]", gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw)
            for part in _texts(blob, most_bytes):
                yield Part(part.where, part.number, part.value, raw.seek(0, os.SEEK_CUR))
    except (OSError, EOFError, zlib.error) as error:
        raise Rejected(f"cannot read {file}: {error}") from error


def _texts(blob: IO[bytes], most_bytes: int) -> Iterator[Part]:
    """The records of JSON in any of its forms."""
    begin = blob.read(PIECE).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    blob.seek(0)
    if begin == b"[":
        yield from _listed(blob, most_bytes)
        return
    whole = _whole(blob, most_bytes)
    if whole is not None:
        yield from _unpacked("record", 1, whole)
        return
    blob.seek(0)
    number = 0
    while line := blob.readline(most_bytes):
        number += 1
        if not line.endswith(b"\n") and len(line) == most_bytes:
            while line and not line.endswith(b"\n"):
                line = blob.readline(PIECE)
            yield Part(f"line {number}", number, Unreadable(f"is longer than {most_bytes} bytes"))
        elif line.removeprefix(codecs.BOM_UTF8).strip():
            yield from _unpacked("line", number, _parsed(line))


def _whole(blob: IO[bytes], most_bytes: int) -> object:
    """The only object of a file that is written over several lines; None for JSON lines."""
    first = blob.readline(most_bytes)
    while first and not first.strip():
        first = blob.readline(most_bytes)
    if not first or not isinstance(_parsed(first), Unreadable):
        return None
    rest = blob.read(most_bytes)
    value = _parsed(first + rest) if rest and len(rest) < most_bytes else Unreadable("too long")
    return None if isinstance(value, Unreadable) else value


def _listed(blob: IO[bytes], most_bytes: int) -> Iterator[Part]:
    """The items of a JSON list, or of lists one after the other. What follows a broken item cannot be read."""
    items, number = _Items(blob, most_bytes), 1
    try:
        while items.begins():
            yield from _unpacked("record", number, items.next())
            number += 1
    except (ValueError, RecursionError) as error:
        why = TOO_DEEP if isinstance(error, RecursionError) else error
        unread = Unreadable(f"the list cannot be read from here on: {why}", ends=True)
        yield Part(f"record {number}", number, unread)


class _Items:
    """Takes JSON lists apart while they are read, piece by piece."""

    def __init__(self, blob: IO[bytes], most_bytes: int) -> None:
        self._blob = blob
        self._most_bytes = most_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0
        self._is_inside = False

    def begins(self) -> bool:
        """Whether there is another item, in this list or in one after it. Raises `ValueError` for what is neither."""
        while True:
            mark = self._mark()
            if mark == "]" and self._is_inside:
                self._is_inside = False
                self._at += 1
            elif mark == ("," if self._is_inside else "["):
                self._is_inside = True
                self._at += 1
                if self._mark() != "]":
                    return True
            elif not mark and not self._is_inside:
                return False
            else:
                place = "an item" if self._is_inside else "its end"
                raise ValueError(f"{mark!r} follows {place}" if mark else "it ends early")

    def next(self) -> object:
        """The item that begins here. Raises `ValueError` or `RecursionError`."""
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except ValueError:
                if not self._grow():
                    raise
                continue
            if end == len(self._text) and self._grow():
                continue  # a number may go on
            self._at = end
            return value

    def _mark(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in BLANKS:
                    return self._text[self._at]
                self._at += 1
            if not self._grow():
                return ""

    def _grow(self) -> bool:
        """Read on, as much again as there is, so that a long item is not scanned for every piece of it."""
        rest = len(self._text) - self._at
        if rest > self._most_bytes:
            raise ValueError(f"an item is longer than {self._most_bytes} bytes")
        piece = self._blob.read(max(PIECE, rest))
        more = self._decoder.decode(piece, final=not piece)
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(piece)


def _unpacked(kind: str, number: int, value: object) -> Iterator[Part]:
    """The value, or what a page of an HTTP API lists: `{"data": [...], "meta": {...}}`."""
    page = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if isinstance(page.get("data"), list) and page.keys() <= PAGE:
        for place, item in enumerate(cast("list[object]", page["data"])):
            yield Part(f"{kind} {number} item {place}", number, item)
    else:
        yield Part(f"{kind} {number}", number, value)


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        return Unreadable(TOO_DEEP)
    except ValueError as error:
        return Unreadable(f"not JSON: {error}")


def _rows(file: Path) -> Iterator[Part]:
    """The rows of a table, some at a time. Raises `Rejected`."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and most imports are of JSON

    number, size = 0, file.stat().st_size
    try:
        for batch, position in _batches(file, size):
            for row in cast("list[dict[str, object]]", batch.to_pylist()):
                yield Part(f"row {number}", number + 1, row, position)
                number += 1
    except (pa.ArrowException, ValueError) as error:
        raise Rejected(f"{file} is damaged or not a table: {error}") from error


def _batches(file: Path, size: int) -> Iterator[tuple[Any, int]]:
    """Row groups, and how far the file has been read. `Any`: pyarrow is typed in parts."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    if _suffix(file) == ".parquet":
        with pq.ParquetFile(file) as table:
            for place in range(table.num_row_groups):
                for batch in table.iter_batches(batch_size=ROWS, row_groups=[place]):
                    yield batch, size * place // table.num_row_groups
        return
    with pa.memory_map(str(file)) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        reader: Any = pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
        batches = (reader.get_batch(place) for place in range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            for begin in range(0, batch.num_rows, ROWS):
                yield batch.slice(begin, ROWS), mapped.seek(0, os.SEEK_CUR)
