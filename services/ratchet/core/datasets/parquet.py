"""Rows of a snapshot, or of the archive, as a Parquet file: columns and their types follow from the row's struct.

A text, a number, a boolean or an instant is a column of its type, a list of numbers a column of lists of 32-bit
numbers, any other list a column of JSON text; a member that may be None is a column that may be null. A file is written
and read one row group at a time. Imports no store: the training process reads its file with this module.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import inspect

from ratchet.bus.message import Value, decode
from ratchet.core.errors import Rejected

R = TypeVar("R", bound=Value)

DECODED = 32
"""Rows that are decoded at a time."""

# pyarrow ships no types: its members are unknown to the type checker.
_ARROW: Any = pa
_PARQUET: Any = pq

_COLUMN_TYPES: dict[type[inspect.Type], Callable[[], Any]] = {
    inspect.StrType: _ARROW.string,
    inspect.FloatType: _ARROW.float64,
    inspect.IntType: _ARROW.int64,
    inspect.BoolType: _ARROW.bool_,
    inspect.DateTimeType: lambda: _ARROW.timestamp("ms", tz="UTC"),
    inspect.ListType: _ARROW.string,
}
_NUMBERS: dict[type[inspect.Type], Callable[[], Any]] = {
    inspect.IntType: _ARROW.int32,
    inspect.FloatType: _ARROW.float32,
}
"""What a list of numbers holds: token ids fit, and engines compute log-probabilities in float32."""


def arrow_schema(kind: type[Value]) -> Any:
    """The columns of a kind of rows, in order. `Any`: a `pyarrow.Schema`, see above."""
    columns: list[Any] = []
    for field in _fields(kind):
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        (column,) = (part for part in types if not isinstance(part, inspect.NoneType))
        kind_of: Any = _COLUMN_TYPES[type(column)]()
        if isinstance(column, inspect.ListType) and _is_numbers(column):
            kind_of = _ARROW.list_(_ARROW.field("element", _NUMBERS[type(column.item_type)](), nullable=False))
        columns.append(_ARROW.field(field.name, kind_of, nullable=len(types) > 1))
    return _ARROW.schema(columns)


class RowWriter(Generic[R]):
    """Writes rows of one kind to a file; `close` completes it.

    A thread that writes goes on after the task that awaits it was cancelled. `close` waits for it: Arrow ends the
    process where one thread closes a file that another one writes.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._writing = threading.Lock()
        self._schema = arrow_schema(kind)
        self._texts = _json_columns(kind)
        numbers = [f"{name}.list.element" for name in _number_columns(kind)]
        self._writer = _PARQUET.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            write_page_checksum=True,
            # Log-probabilities compress by their bytes; a dictionary of them is larger than they are.
            use_dictionary=[name for name in self._schema.names if f"{name}.list.element" not in numbers],
            use_byte_stream_split=numbers,
        )

    def add(self, rows: Sequence[R]) -> None:
        """Append rows as one row group."""
        records = [{name: getattr(row, name) for name in self._schema.names} for row in rows]
        for record in records:
            record |= {name: msgspec.json.encode(record[name]).decode() for name in self._texts}
        table = _ARROW.Table.from_pylist(records, schema=self._schema)
        with self._writing:
            self._writer.write_table(table)

    def close(self) -> None:
        """Complete the file; a second time does nothing."""
        with self._writing:
            self._writer.close()


def count_rows(path: Path) -> int:
    """The number of rows. Raises `Rejected` when the file is no Parquet file."""
    with _readable("rows", count(1)):
        return int(_PARQUET.ParquetFile(path).metadata.num_rows)


def read_rows(path: Path, kind: type[R], *, without: Collection[str] = (), as_arrays: bool = False) -> Iterator[R]:
    """The rows of a file, in its order; skips columns that their struct does not have.

    Lists named in `without` are not read, and are empty. With `as_arrays` lists of numbers are arrays of numpy, which
    take an eighth of the memory. Raises `Rejected` when the file does not hold rows of this kind.
    """
    schema, texts, numbers = arrow_schema(kind), _json_columns(kind), _number_columns(kind)
    absent = {name: list[Any]() for name in (*numbers, *without)}
    place = count(1)
    with _readable(f"{kind.__name__}s", place):
        file: Any = _PARQUET.ParquetFile(path)
        stored = [name for name in schema.names if name in file.schema_arrow.names and name not in without]
        plain, lists = [name for name in stored if name not in numbers], [name for name in stored if name in numbers]
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(DECODED, row_groups=[group], columns=stored):
                columns = {name: _Lists(batch.column(name).cast(schema.field(name).type)) for name in lists}
                for index, record in enumerate(batch.select(plain).to_pylist()):
                    for name in texts.keys() & record.keys():
                        record[name] = None if record[name] is None else decode(record[name], texts[name])
                    arrays = {name: column[index] for name, column in columns.items()}
                    own = arrays if as_arrays else {name: array.tolist() for name, array in arrays.items()}
                    yield msgspec.structs.replace(msgspec.convert(absent | record, kind), **own)
                    next(place)


def read_page(
    file: IO[bytes] | io.RawIOBase, columns: Sequence[str], offset: int, limit: int, *, has_all: bool = False
) -> list[dict[str, Any]]:
    """Some columns of some rows, as they are stored: lists are JSON text. Of the file only what that takes is read, and
    verified page by page.

    `Any`: each column has its own type. Raises `Rejected` when the file does not hold such rows; with `has_all` also
    when it lacks a column, which is None else.
    """
    rows: list[dict[str, Any]] = []
    with _readable("rows", count(offset + 1)):
        stored: Any = _PARQUET.ParquetFile(file, page_checksum_verification=True)
        names = [name for name in columns if name in stored.schema_arrow.names]
        if has_all and (lacking := {*columns} - {*names}):
            raise Rejected(f"the file lacks the columns {', '.join(sorted(lacking))}")
        absent = dict.fromkeys(columns)
        first = 0
        for group in range(stored.num_row_groups):
            size = int(stored.metadata.row_group(group).num_rows)
            begin, end = max(offset - first, 0), min(offset + limit - first, size)
            if begin < end:
                table: Any = stored.read_row_group(group, columns=names)
                rows += [absent | row for row in table.slice(begin, end - begin).to_pylist()]
            first += size
    return rows


@contextmanager
def _readable(what: str, place: count[int]) -> Generator[None]:
    """Raises `Rejected` for a file whose content cannot be read, with the row from which on. `place` counts rows."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, msgspec.DecodeError, OSError) as error:
        of_the_disk = isinstance(error, OSError) and error.errno is not None  # pyarrow's own are of the content
        if of_the_disk or isinstance(error, MemoryError):
            raise
        raise Rejected(f"no {what} can be read from the file, from row {next(place)} on: {error}") from error


class _Lists:
    """A column of lists of numbers; each list is an array of its own, as a view would keep all of them in memory."""

    def __init__(self, column: Any) -> None:
        if column.null_count or column.values.null_count:
            raise msgspec.ValidationError("a number is null")
        self._values = column.values.to_numpy()
        self._offsets = column.offsets.to_numpy()

    def __getitem__(self, place: int) -> Any:
        return self._values[self._offsets[place] : self._offsets[place + 1]].copy()


def _fields(kind: type[Value]) -> Sequence[inspect.Field]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)  # noqa: S101 - every kind of rows is one
    return [msgspec.structs.replace(field, type=_bare(field.type)) for field in struct.fields]


def _bare(kind: inspect.Type) -> inspect.Type:
    """A type without what only its schema says."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    if isinstance(kind, inspect.UnionType):
        return inspect.UnionType(tuple(_bare(part) for part in kind.types))
    return inspect.ListType(_bare(kind.item_type)) if isinstance(kind, inspect.ListType) else kind


def _json_columns(kind: type[Value]) -> dict[str, Any]:
    """Type by name, of the columns that are JSON text. `Any`: a list of one type is no class."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    lists = [field for field in _fields(kind) if isinstance(field.type, inspect.ListType)]
    return {field.name: types[field.name] for field in lists if not _is_numbers(field.type)}


def _number_columns(kind: type[Value]) -> list[str]:
    return [field.name for field in _fields(kind) if _is_numbers(field.type)]


def _is_numbers(column: inspect.Type) -> bool:
    return isinstance(column, inspect.ListType) and type(column.item_type) in _NUMBERS
