"""Records of a file, a few at a time: JSON lines, the JSON array that Argilla's SDK writes, or Parquet."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.errors import Rejected

BATCH = 500
"""Rows of Parquet that are read at a time."""
CHUNK = 1 << 20
"""Characters of a JSON array that are read at a time."""
MAX_RECORD = 16 << 20
"""Bytes of one record, of an array characters; a longer one is no record of a conversation."""
_OPENING, _BETWEEN = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*")

# pyarrow ships no types: its members are unknown to the type checker.
_PARQUET: Any = pq
_ARROW: Any = pa


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a record: why its line holds none."""

    problem: str


def records_in(file: Path) -> Iterator[tuple[int, object]]:
    """Every record with its number: that of its line, in an array or in Parquet that of the record, from 1 on.

    `Unreadable` stands for a line that is no JSON, or longer than `MAX_RECORD`. Raises `Rejected` for a file that
    cannot be read to its end.
    """
    try:
        if file.suffix.lower() == ".parquet":
            yield from enumerate(_rows(file), 1)
        elif _is_array(file):
            yield from enumerate(_elements(file), 1)
        else:
            yield from _lines(file)
    except (OSError, UnicodeDecodeError, _ARROW.ArrowException) as error:
        raise Rejected(f"cannot read {file}: {error}") from error


def _rows(file: Path) -> Iterator[object]:
    with _PARQUET.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()


def _is_array(file: Path) -> bool:
    with file.open("rb") as content:
        begin = content.read(CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
        while not begin and (chunk := content.read(CHUNK)):
            begin = chunk.lstrip()
    return begin.startswith(b"[")


def _lines(file: Path) -> Iterator[tuple[int, object]]:
    number = 0
    with file.open("rb") as lines:
        while line := lines.readline(MAX_RECORD + 1):
            number += 1
            if len(line) > MAX_RECORD:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(CHUNK)
                yield number, Unreadable(f"it is longer than {MAX_RECORD >> 20} MiB")
            elif line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield number, Unreadable(f"it is no JSON: {error}")


def _elements(file: Path) -> Iterator[object]:
    """The elements of an array. One that is broken ends it: nothing says where the next one begins."""
    decoder, buffer, place, gap = json.JSONDecoder(), "", 0, _OPENING
    with file.open(encoding="utf-8-sig") as text:
        while (chunk := text.read(CHUNK)) and len(buffer) - place <= MAX_RECORD:
            buffer, place = buffer[place:] + chunk, 0
            while (begin := gap.match(buffer, place)) is not None and begin.end() < len(buffer):
                try:
                    element, after = decoder.raw_decode(buffer, begin.end())
                except (ValueError, RecursionError):  # it may go on in the next chunk
                    break
                yield element
                place, gap = after, _BETWEEN
    if "".join(buffer[place:].split()) not in ("]", "[]"):
        raise Rejected(f"{file} is no JSON array to its end")
