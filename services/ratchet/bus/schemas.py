"""JSON Schemas of messages: read from their files, and held against messages in two views.

The *strict* view is the file itself, closed at every level: it guards the edges. The *open* one ignores unknown members
and takes any value for an enum: consumers read with it, so that an older reader survives a newer writer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import msgspec

from ratchet.bus.message import decode
from ratchet.errors import ConfigError, InvalidMessage, Rejected

Json = Any
"""Parsed JSON. `Any` because that is what a JSON document is before it is checked."""

SCHEMA_ID = "urn:ratchet:schema:"
"""Followed by its name: the `$id` of a schema, by which others refer to it."""
_ONE = ("items", "additionalProperties", "then", "else")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs")
"""Keywords that hold one schema, several, and several by their names."""


@dataclass(frozen=True, slots=True)
class Breach:
    """Where and why a message breaks a schema, and by which view: `open` (readers refuse it) or `strict` only."""

    view: str
    path: str
    reason: str


class Schema:
    """The two views of one schema. What their errors say never quotes a message: it goes to logs and dead letters."""

    def __init__(self, schema: Json) -> None:
        """Raises `Rejected` unless it is a JSON Schema."""
        try:
            self._strict = _validator(schema)
            self._open = _validator(open_view(schema))
        except (ValueError, TypeError) as error:
            raise Rejected(f"not a JSON Schema: {str(error).splitlines()[0]}") from error
        self._members = frozenset(_members(schema))

    def check_strict(self, parsed: Json) -> None:
        """Raises `InvalidMessage` unless the strict view takes it."""
        self._check(self._strict, parsed)

    def check_open(self, parsed: Json) -> int:
        """How many members the schema does not know. Raises `InvalidMessage` unless the open view takes it."""
        if self._strict.is_valid(parsed):
            return 0
        self._check(self._open, parsed)
        kind = jsonschema_rs.ValidationErrorKind.AdditionalProperties
        return sum(len(e.kind.unexpected) for e in self._strict.iter_errors(parsed) if isinstance(e.kind, kind))

    def breach(self, parsed: Json) -> Breach | None:
        """What is wrong with a message; None when the strict view takes it, which the open one then does too."""
        for name, view in (("open", self._open), ("strict", self._strict)):
            try:
                with handleable():
                    self._check(view, parsed)
            except InvalidMessage as error:
                return Breach(name, error.path, error.reason)
        return None

    def _check(self, view: jsonschema_rs.Draft202012Validator, parsed: Json) -> None:
        try:
            view.validate(parsed)
        except jsonschema_rs.ValidationError as error:
            raise InvalidMessage(error.message, self._pointer(error.instance_path)) from error

    def _pointer(self, path: Sequence[str | int]) -> str:
        """Where it is, with `*` for a member that its sender named: only the schema's names may stand in a log."""
        shown = [part if isinstance(part, int) or part in self._members else "*" for part in path]
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in shown)


@contextmanager
def handleable() -> Iterator[None]:
    """Makes `InvalidMessage` of what a library gives up on: JSON nested hundreds of levels deep, invalid Unicode."""
    try:
        yield
    except RecursionError as error:
        raise InvalidMessage("nested too deeply") from error
    except ValueError as error:
        raise InvalidMessage(f"cannot be handled: {error}") from error


def parse(body: bytes) -> Json:
    """A body as JSON. Raises `InvalidMessage`."""
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"not JSON: {error}") from error


def load_schema(root: Path, name: str) -> Json:
    """The strict schema `name` (`order.v1`) of the contracts in `root`, complete in itself.

    Raises `ConfigError` when `root` lacks it, or a schema that it refers to.
    """
    for path in (root / "schemas").rglob(f"{name}.schema.json"):
        return with_references(root, json.loads(path.read_text()))
    raise ConfigError(f"there is no schema {name} below {root / 'schemas'}")


def with_references(root: Path, schema: Json) -> Json:
    """`schema`, and embedded in its `$defs` by their names the schemas of `root` that it refers to by their `$id`.

    Such a compound document (JSON Schema 2020-12, section 9.3) needs no other: all that validates, compares or shows
    schemas works on it. Raises `ConfigError` for a reference to a schema that `root` lacks.
    """
    embedded = {name: load_schema(root, name) for name in sorted({*_references(schema)})}
    return {**schema, "$defs": {**embedded, **schema.get("$defs", {})}} if embedded else schema


def open_view(schema: Json) -> Json:
    """`schema` without closed objects and closed enums; types, formats, ranges and conditions (`if`) stay."""
    if not isinstance(schema, dict):
        return schema
    opened: dict[str, Json] = {}
    for key, value in cast("dict[str, Json]", schema).items():
        if key == "enum" or (key == "additionalProperties" and value is False):
            continue
        if key in _ONE:
            opened[key] = open_view(value)
        elif key in _LIST:
            opened[key] = [open_view(part) for part in value]
        elif key in _BY_NAME:
            opened[key] = {name: open_view(part) for name, part in value.items()}
        else:
            opened[key] = value
    return opened


def _validator(schema: Json) -> jsonschema_rs.Draft202012Validator:
    # Masked: reasons go to logs and dead letters, where the content of messages has no place.
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True, mask="value")


def _references(schema: Json) -> Iterator[str]:
    """The names of the schemas that a schema refers to, anywhere in it."""
    for part in _objects(schema):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith(SCHEMA_ID):
            yield reference.removeprefix(SCHEMA_ID).partition("#")[0]


def _members(schema: Json) -> Collection[str]:
    """The names of all members that a schema describes, at any depth."""
    return {name for part in _objects(schema) for name in part.get("properties", {})}


def _objects(document: Json) -> Iterator[dict[str, Json]]:
    """Every object in a JSON document, at any depth, itself included."""
    if isinstance(document, dict):
        members = cast("dict[str, Json]", document)
        yield members
        for part in members.values():
            yield from _objects(part)
    elif isinstance(document, list):
        for part in cast("list[Json]", document):
            yield from _objects(part)
