"""Writes records into one file, JSON lines or Parquet. The file appears when it is complete, or not at all."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.exporters.base import Record
from ratchet.service.files import staged

_TYPES: Mapping[str, Any] = {
    "text": pa.string(),
    "json": pa.string(),
    "number": pa.float64(),
    "integer": pa.int64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
}
"""`Any`: pyarrow has no types of its own for pyright."""


class Writer(Protocol):
    """Takes records in order."""

    def write(self, records: Sequence[Record]) -> None:
        """Add records."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class JsonLines:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, records: Sequence[Record]) -> None:
        """Add lines."""
        self._file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class Parquet:
    """One row group for each page; nested members are JSON text."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._schema: Any = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
        self._file: Any = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, records: Sequence[Record]) -> None:
        """Add rows."""
        rows = [{name: _cell(record.get(name), kind) for name, kind in self._columns.items()} for record in records]
        self._file.write_table(pa.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._file.close()


@contextmanager
def written(path: Path, file_format: str, columns: Mapping[str, str]) -> Generator[Writer]:
    """A writer for `path`, which is replaced when the block ends well. Raises `OSError`."""
    with staged(path) as partial:
        writer: Writer = JsonLines(partial) if file_format == "jsonl" else Parquet(partial, columns)
        try:
            yield writer
        finally:
            writer.close()


def _cell(value: Any, kind: str) -> Any:  # `Any`: whatever a record holds
    return msgspec.json.encode(value).decode() if kind == "json" and value is not None else value
