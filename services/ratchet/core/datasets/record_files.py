"""Records of TRL's formats as files that `datasets` reads: JSON lines as they are, or Parquet.

In Parquet every message has the same members, null where it lacks one; arguments of a tool call are JSON text. What has
no place there is refused, not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.bus.message import JsonObject
from ratchet.core.errors import Rejected
from ratchet.core.rules.chat import text_of

BLOCK = 500
"""Records of a row group."""

# pyarrow ships no types: its members are unknown to the type checker.
_ARROW: Any = pa
_PARQUET: Any = pq
_TEXT: Any = _ARROW.string()
_FUNCTION: Any = _ARROW.struct([("name", _TEXT), ("arguments", _TEXT)])
_CALL: Any = _ARROW.struct([("id", _TEXT), ("type", _TEXT), ("function", _FUNCTION)])
_PLAIN = ("role", "content", "reasoning_content", "name", "tool_call_id")
_MESSAGE: Any = _ARROW.struct([*((name, _TEXT) for name in _PLAIN), ("tool_calls", _ARROW.list_(_CALL))])
_MESSAGES: Any = _ARROW.list_(_MESSAGE)
_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "messages": {"messages": _MESSAGES, "tools": _TEXT},
    "prompt_completion": {"prompt": _MESSAGES, "completion": _MESSAGES, "tools": _TEXT},
    "preference": {"prompt": _MESSAGES, "chosen": _MESSAGES, "rejected": _MESSAGES, "tools": _TEXT},
    "unpaired": {"prompt": _MESSAGES, "completion": _MESSAGES, "label": _ARROW.bool_(), "tools": _TEXT},
}
"""By form: its columns and their types."""


class RecordFile(Protocol):
    """A file that takes records of one form; `close` completes it."""

    def add(self, record: JsonObject) -> None:
        """Append one. Raises `Rejected` for a record that the file cannot hold."""
        ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON document a line."""

    def __init__(self, path: Path, _form: str) -> None:
        self._lines = path.open("wb")

    def add(self, record: JsonObject) -> None:
        """See `RecordFile`."""
        self._lines.write(msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """See `RecordFile`."""
        self._lines.close()


class ParquetRecords:
    """A Parquet file with the columns of the form, whether a record has them or not."""

    def __init__(self, path: Path, form: str) -> None:
        self._schema = _ARROW.schema(list(_COLUMNS[form].items()))
        self._lists = [name for name, column in _COLUMNS[form].items() if column is _MESSAGES]
        self._writer = _PARQUET.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[JsonObject] = []

    def add(self, record: JsonObject) -> None:
        """See `RecordFile`."""
        self._waiting.append(record | {name: [*map(_message, record[name])] for name in self._lists})
        if len(self._waiting) == BLOCK:
            self._flush()

    def close(self) -> None:
        """See `RecordFile`."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(_ARROW.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting.clear()


def _message(message: JsonObject) -> JsonObject:
    given = {name: value for name, value in message.items() if value is not None}
    if other := sorted(given.keys() - {*_PLAIN, "tool_calls"}):
        raise Rejected(f"a message has {', '.join(other)}, for which Parquet has no column here: write .jsonl")
    plain = {name: _text(given[name]) for name in _PLAIN if name in given}
    return plain | ({"tool_calls": [_call(call) for call in given["tool_calls"]]} if "tool_calls" in given else {})


def _call(call: JsonObject) -> JsonObject:
    function = cast("JsonObject", call.get("function") or {})
    arguments = function.get("arguments")
    text = arguments if arguments is None or isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"id": call.get("id"), "type": call.get("type"), "function": {**function, "arguments": text}}


def _text(content: object) -> str:
    """A text, also where it came in parts. Raises `Rejected` for parts of another kind."""
    if isinstance(content, list):
        parts = cast("list[JsonObject]", content)
        if any(part.get("type") != "text" for part in parts):
            raise Rejected("a message has content that is no text, for which Parquet has no column here: write .jsonl")
    return text_of(content)


RECORD_FILES: Mapping[str, Callable[[Path, str], RecordFile]] = {".jsonl": JsonLines, ".parquet": ParquetRecords}
"""Suffix -> how a file of it is written, for a form of TRL."""
