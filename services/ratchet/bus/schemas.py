"""JSON Schemas of messages: read from their files, and held against messages in two views.

The *strict* view is the file itself, closed at every level: it guards the edges. The *open* one ignores unknown members
and takes any value for an enum: consumers read with it, so that an older reader survives a newer writer.

What the strict view takes, the open one takes as well: `oneOf` becomes `anyOf`, for open alternatives may overlap, and
conditions (`if`, `not`) stay as they are. A schema for which that is not enough is refused when it is read: a condition
refers to another part, `maxContains` counts, or a reference leads below a keyword that opening does not look into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import msgspec

from ratchet.bus.json_values import count_values
from ratchet.bus.message import decode
from ratchet.core.errors import BadRequest, ConfigError, InvalidMessage, Rejected

Json = Any
"""Parsed JSON. `Any` because that is what a JSON document is before it is checked."""

VALUES_TIMES = 2
"""A message may hold twice as many values as a request: what was asked, and what was answered."""

SCHEMA_ID = "urn:ratchet:schema:"
"""Followed by its name: the `$id` of a schema, by which others refer to it."""
_ONE = (
    *("items", "additionalProperties", "then", "else"),
    *("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords that hold one schema, several, and several by their names: all that are opened."""
_CONDITIONS = ("if", "not")
_REFERENCES = ("$ref", "$dynamicRef")
_CLOSING = ("additionalProperties", "unevaluatedProperties")
_UNKNOWN_MEMBERS = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.UnevaluatedProperties,
)


@dataclass(frozen=True, slots=True)
class Breach:
    """Where and why a message breaks a schema, and by which view: `open` (readers refuse it) or `strict` only."""

    view: str
    path: str
    reason: str


class Schema:
    """The two views of one schema. What their errors say never quotes a message: it goes to logs and dead letters."""

    def __init__(self, schema: Json) -> None:
        """Raises `Rejected` unless it is a JSON Schema that can be opened."""
        try:
            self._strict = _validator(schema)
            for part in _subschemas(schema):
                _check_openable(part)
            self._open = _validator(open_view(schema))
        except (ValueError, TypeError) as error:
            raise Rejected(f"not a JSON Schema: {str(error).splitlines()[0]}") from error
        self._members = frozenset(name for part in _objects(schema) for name in part.get("properties", {}))
        """The names of all members that it describes, at any depth."""

    def check_strict(self, parsed: Json) -> None:
        """Raises `InvalidMessage` unless the strict view takes it."""
        self._check(self._strict, parsed)

    def check_open(self, parsed: Json) -> int:
        """How many members the schema does not know. Raises `InvalidMessage` unless the open view takes it."""
        if self._strict.is_valid(parsed):
            return 0
        self._check(self._open, parsed)
        kinds = (error.kind for error in self._strict.iter_errors(parsed))
        return sum(len(kind.unexpected) for kind in kinds if isinstance(kind, _UNKNOWN_MEMBERS))

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
            kind, reason = error.kind, error.message
            # Without the names that a sender gave to members: the mask covers values alone.
            if isinstance(kind, _UNKNOWN_MEMBERS):
                reason = f"{len(kind.unexpected)} unknown members are not allowed"
            elif isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
                reason = f"a member's name is refused: {kind.error.message}"
            raise InvalidMessage(reason, self._pointer(error.instance_path)) from None

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
        raise InvalidMessage(f"cannot be handled: {type(error).__name__}") from error


def parse(body: bytes) -> Json:
    """A body as JSON. Raises `InvalidMessage`, also for one of too many values: packed, gigabytes are few KB."""
    try:
        count_values(body, VALUES_TIMES)
        return decode(body)
    except BadRequest as error:
        raise InvalidMessage(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"not JSON: {error}") from error


def read_document(path: Path) -> Json:
    """The object in a JSON file. Raises `ConfigError` where there is none."""
    try:
        document = decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return cast("Json", document)


def load_schema(root: Path, name: str) -> Json:
    """The strict schema `name` (`order.v1`) of the contracts in `root`, complete in itself.

    Raises `ConfigError` when `root` lacks it, or a schema that it refers to, or when schemas refer to one another.
    """
    return _loaded(root, name, ())


def with_references(root: Path, schema: Json) -> Json:
    """`schema`, and embedded in its `$defs` by their names the schemas of `root` that it refers to by their `$id`.

    Such a compound document (JSON Schema 2020-12, section 9.3) needs no other: all that validates, compares or shows
    schemas works on it. Raises `ConfigError` for a reference to a schema that `root` lacks, or that leads back to where
    it came from: within one schema, recursion is a reference such as `#/$defs/node`.
    """
    name = schema.get("$id", "") if isinstance(schema, dict) else ""
    return _complete(root, schema, (str(name).removeprefix(SCHEMA_ID),))


def open_view(schema: Json) -> Json:
    """`schema` without closed objects and closed enums; types, formats, ranges and conditions stay."""
    if not isinstance(schema, dict):
        return schema
    opened: dict[str, Json] = {}
    for key, value in cast("dict[str, Json]", schema).items():
        if key == "enum" or (key in _CLOSING and value is False):
            continue
        if key in _ONE:
            opened[key] = open_view(value)
        elif key in _LIST:
            opened[key] = [open_view(part) for part in value]
        elif key in _BY_NAME:
            opened[key] = {name: open_view(part) for name, part in value.items()}
        else:
            opened[key] = value
    if "oneOf" in opened:  # open alternatives may overlap
        opened["allOf"] = [*opened.get("allOf", []), {"anyOf": opened.pop("oneOf")}]
    return opened


def _loaded(root: Path, name: str, around: tuple[str, ...]) -> Json:
    """The schema `name`, complete in itself; `around`: those that lead to it, outermost first."""
    if name in around:
        raise ConfigError(f"schemas refer to one another in a circle: {', '.join((*around, name))}")
    for path in (root / "schemas").rglob(f"{name}.schema.json"):
        return _complete(root, read_document(path), (*around, name))
    raise ConfigError(f"there is no schema {name} below {root / 'schemas'}")


def _complete(root: Path, schema: Json, around: tuple[str, ...]) -> Json:
    references = [str(part.get("$ref", "")) for part in _objects(schema)]
    names = {ref.removeprefix(SCHEMA_ID).partition("#")[0] for ref in references if ref.startswith(SCHEMA_ID)}
    embedded = {name: _loaded(root, name, around) for name in sorted(names)}
    return {**schema, "$defs": {**embedded, **schema.get("$defs", {})}} if embedded else schema


def _validator(schema: Json) -> jsonschema_rs.Draft202012Validator:
    # Masked: reasons go to logs and dead letters, where the content of messages has no place.
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True, mask="value")


def _subschemas(schema: Json) -> Iterator[dict[str, Json]]:
    """Every schema inside a valid one that is opened, itself first."""
    if not isinstance(schema, dict):
        return
    members = cast("dict[str, Json]", schema)
    yield members
    for key, value in members.items():
        parts = [value] if key in _ONE else value if key in _LIST else value.values() if key in _BY_NAME else ()
        for part in parts:
            yield from _subschemas(part)


def _check_openable(schema: dict[str, Json]) -> None:
    """Raises `Rejected` for what would refuse more, or stay closed, in the open view."""
    if "maxContains" in schema:
        raise Rejected("the open view cannot keep `maxContains`: more elements match a schema that is open")
    for key in _CONDITIONS:
        if any(isinstance(part.get(name), str) for part in _objects(schema.get(key)) for name in _REFERENCES):
            raise Rejected(f"`{key}` refers to another schema, which the open view opens: write the condition out")
    _, *steps = str(schema.get("$ref", "")).partition("#")[2].split("/")
    if steps and (steps[0] not in (*_ONE, *_LIST, *_BY_NAME) or {*steps} & {*_CONDITIONS}):
        raise Rejected(f"{schema['$ref']} leads where the open view opens nothing: put the schema into `$defs`")


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
