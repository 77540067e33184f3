"""A preference as a record of a file, `{prompt, chosen, rejected, metadata}`, and back; and such files, JSON lines that
many processes append to at once without losing a line.

A person's choice may also stand as it was made: `{prompt, a, b, choice, metadata}` with the choice `a` or `b`.
Members of `metadata` that a preference has are taken as such (`rater`, `confidence`, `domain`, `source`, ...), others
become labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from ratchet.core.contract import DEFAULT_ROLE, JsonObject, Preference
from ratchet.core.contract.reward import SOURCES, preference_id
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.service.files import take

CHOICES = ("a", "b")
ANSWERS = ("prompt", "chosen", "rejected")
FIELDS = tuple(name for name in Preference.__struct_fields__ if name not in (*ANSWERS, "labels"))
"""What `metadata` can say of a preference."""


def preference_of(record: object, role: str | None) -> Preference:
    """The preference of a record; the same record always has the same id.

    `role`: its role; by default the one in the metadata. Raises `Rejected` with what is wrong.
    """
    fields = _object(record, "the record")
    texts = _chosen(fields) if "choice" in fields or "a" in fields or "b" in fields else _plain(fields)
    metadata = _object(fields.get("metadata") or {}, "metadata")
    fields_given = {name: value for name, value in metadata.items() if name in FIELDS and value is not None}
    labels = _object(metadata.get("labels") or {}, "metadata.labels")
    more = {name: value for name, value in metadata.items() if name not in (*FIELDS, "labels")}
    if role is not None and fields_given.get("role", role) != role:
        raise Rejected(f"belongs to the role {fields_given['role']!r}, not to {role!r}")
    values = {
        "source": "human",
        "role": role or DEFAULT_ROLE,
        **fields_given,
        **texts,
        "labels": {**labels, **more} or None,
    }
    if values["source"] not in SOURCES:
        raise Rejected(f"source must be one of {', '.join(SOURCES)}, not {values['source']!r}")
    # The same words of the same rater are the same preference.
    own_id = preference_id([values.get(name) for name in ("role", "source", "rater", *ANSWERS)])
    values.setdefault("preference_id", own_id)
    try:
        return msgspec.convert(values, Preference)
    except msgspec.ValidationError as error:
        raise Rejected(str(error)) from error


def record_of(preference: Preference) -> JsonObject:
    """The record of a preference; `preference_of` gives the same preference back."""
    whole: JsonObject = msgspec.to_builtins(preference)
    metadata = {name: value for name, value in whole.items() if name not in ANSWERS and value is not None}
    return {**{name: whole[name] for name in ANSWERS}, "metadata": {"role": preference.role, **metadata}}


def _plain(fields: JsonObject) -> JsonObject:
    _only(fields, (*ANSWERS, "metadata"))
    texts = {name: fields[name] for name in ANSWERS}
    if texts["chosen"] == texts["rejected"]:
        raise Rejected("chosen and rejected are the same")
    return texts


def _chosen(fields: JsonObject) -> JsonObject:
    """A choice between `a` and `b`. A tie, or any other word, is no preference."""
    _only(fields, ("prompt", "a", "b", "choice", "metadata"))
    choice = fields["choice"]
    if choice not in CHOICES:
        raise Rejected(f"choice must be a or b, not {choice!r}")
    other = "b" if choice == "a" else "a"
    return _plain({"prompt": fields["prompt"], "chosen": fields[choice], "rejected": fields[other]})


def _only(fields: JsonObject, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name != "metadata" and fields.get(name) is None]
    if missing:
        raise Rejected(f"the record has no {', '.join(missing)}")
    texts = {name: fields[name] for name in names if name not in ("metadata", "choice")}
    # Nothing to read: no message, or no character but blanks.
    empty = [name for name, text in texts.items() if not (text.strip() if isinstance(text, str) else text != [])]
    if empty:
        raise Rejected(f"{' and '.join(empty)} must not be empty")
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise Rejected(f"the record has the unknown members {', '.join(unknown)}: more about a pair goes into metadata")


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Rejected(f"{what} is not an object")
    return cast("dict[str, Any]", value)


PRIVATE = 0o600
"""Only this user reads what people wrote to an agent."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its number from 1, and what it holds or why that cannot be read."""

    number: int
    record: object = None
    problem: str | None = None


def _last_byte(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1)


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
        take(descriptor, waits=True)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and _last_byte(descriptor, size) != b"\n"
        rest = b"\n" + lines if torn else lines
        while rest:  # one call is enough but on a full disk or an interrupted network file system
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file. Raises `NotFound` or `Rejected`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise Rejected(f"{path} is a directory, not a file") from error
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error}") from error
    return lines_of(text)


def lines_of(text: bytes) -> Iterator[Line]:
    """The lines that hold something."""
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                yield Line(number, msgspec.json.decode(line))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                yield Line(number, problem=f"not JSON: {error}")
