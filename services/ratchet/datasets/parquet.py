"""Rows of a snapshot as a Parquet file. Columns, their types and the reading of them follow from the row's struct.

A text, a number or a boolean is a column of its type, a list is a column of JSON text; a member that may be None is a
column that may be null. Imports no store: the training process reads its file with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import inspect

from ratchet.bus.message import decode
from ratchet.contract.snapshot import Row
from ratchet.errors import Rejected

R = TypeVar("R", bound=Row)

BATCH = 500
"""Rows that are decoded at a time."""

# pyarrow ships no types: its members are unknown to the type checker.
_ARROW: Any = pa
_PARQUET: Any = pq

_COLUMN_TYPES: dict[type[inspect.Type], Callable[[], Any]] = {
    inspect.StrType: _ARROW.string,
    inspect.FloatType: _ARROW.float64,
    inspect.IntType: _ARROW.int64,
    inspect.BoolType: _ARROW.bool_,
    inspect.ListType: _ARROW.string,
}


def arrow_schema(kind: type[Row]) -> Any:
    """The columns of a kind of rows, in order. `Any`: a `pyarrow.Schema`, see above."""
    columns: list[Any] = []
    for field in _fields(kind):
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        (column,) = (one for one in types if not isinstance(one, inspect.NoneType))
        columns.append(_ARROW.field(field.name, _COLUMN_TYPES[type(column)](), nullable=len(types) > 1))
    return _ARROW.schema(columns)


class RowWriter(Generic[R]):
    """Writes rows of one kind to a file; `close` completes it."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._schema = arrow_schema(kind)
        self._texts = _json_columns(kind)
        self._writer = _PARQUET.ParquetWriter(path, self._schema, compression="zstd")

    def add(self, rows: Sequence[R]) -> None:
        """Append rows as one row group."""
        records = [{name: getattr(row, name) for name in self._schema.names} for row in rows]
        for record in records:
            record |= {name: msgspec.json.encode(record[name]).decode() for name in self._texts}
        self._writer.write_table(_ARROW.Table.from_pylist(records, schema=self._schema))

    def close(self) -> None:
        """Complete the file; a second time does nothing."""
        self._writer.close()


def read_rows(path: Path, kind: type[R]) -> Iterator[R]:
    """The rows of a file, in its order; skips columns that their struct does not have.

    Raises `Rejected` when the file does not hold rows of this kind.
    """
    texts = _json_columns(kind)

    def value_of(name: str, stored: Any) -> Any:  # `Any`: of the column's type
        return decode(stored, texts[name]) if name in texts and stored is not None else stored

    try:
        file: Any = _PARQUET.ParquetFile(path)
        names = [field.name for field in _fields(kind) if field.name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH, columns=names):
            for record in batch.to_pylist():
                yield msgspec.convert({name: value_of(name, stored) for name, stored in record.items()}, kind)
    except (pa.ArrowException, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise Rejected(f"no {kind.__name__}s can be read from the file: {error}") from error


def _fields(kind: type[Row]) -> Sequence[inspect.Field]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)  # noqa: S101 - every kind of rows is one
    return struct.fields


def _json_columns(kind: type[Row]) -> dict[str, Any]:
    """Type by name, of the columns that are JSON text. `Any`: a list of one type is no class."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {field.name: types[field.name] for field in _fields(kind) if isinstance(field.type, inspect.ListType)}
