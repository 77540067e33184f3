"""The contracts at run time: which topic a subject belongs to, and whether a message keeps its schema.

One schema file gives two views. The *strict* one is the file itself, closed at every level: it guards the edges.
The *open* one ignores unknown members and takes any value for an enum: consumers read with it, so that an older
reader survives a newer writer.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import jsonschema_rs
import msgspec

from ratchet.bus.deadletter import DeadLetter
from ratchet.bus.message import Message, decode, encode
from ratchet.bus.registry import BucketSpec, ConsumerSpec, ProjectionSpec, Stream, Topic, check_names, specs
from ratchet.bus.upgrades import NO_UPGRADES, Upgrade, Upgrades, older_versions, upgrade_path
from ratchet.errors import ConfigError, InvalidMessage, Rejected, UnknownSubject

T = TypeVar("T")

Json = Any
"""Parsed JSON. `Any` because that is what a JSON document is before it is checked."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A message that was read from the bus."""

    message: Message
    unknown: int
    """How many members its schema does not know."""
    body: bytes
    """The plain JSON it stands for: as it came, or upgraded."""


class Contracts:
    """Topics, streams and buckets, and the validators of every schema."""

    def __init__(
        self,
        document: Json,
        schemas: Mapping[str, Json],
        types: Mapping[str, type[Message]],
        upgrades: Upgrades = NO_UPGRADES,
        mask: Callable[[str], str] = str,
    ) -> None:
        """`types`: topic -> typed mirror. `mask` takes out what must not stand in logs and dead letters.

        Raises `ConfigError` for a registry that names what is not there, and for an upgrade that leads out of its
        stream, where no reader could follow.
        """
        self.topics = specs(Topic, document["topics"])
        self.streams = specs(Stream, document["streams"])
        self.buckets = specs(BucketSpec, document.get("buckets", {}), beside=("keys", "readers"))
        self.consumers = specs(ConsumerSpec, document.get("consumers", {}))
        self.projections = specs(ProjectionSpec, document.get("projections", {}))
        self.dead_letter = _dead_letter(document.get("dead_letters", ""), types)
        self._patterns = [
            (_subject_pattern(subject, document.get("parameters", {})), topic)
            for topic in self.topics.values()
            for subject in topic.subjects
        ]
        self.types = types
        self.mask = mask
        self._check(schemas)
        self._upgrades = upgrades
        for older, upgrade in upgrades.items():
            if self._named(older).stream != self._named(upgrade.to).stream:
                raise ConfigError(f"{older} and {upgrade.to} are in different streams")
        self._strict = {name: _view(schema) for name, schema in schemas.items()}
        self._open = {name: _view(open_view(schema)) for name, schema in schemas.items()}

    def _check(self, schemas: Mapping[str, Json]) -> None:
        """Raises `ConfigError` when the registry names something that is not there."""
        readers = [*self.consumers.values(), *self.projections.values()]
        check_names("streams", (one.stream for one in (*self.topics.values(), *readers)), self.streams)
        check_names("schemas", (topic.schema for topic in self.topics.values()), schemas)
        if untyped := sorted(set(self.topics) - set(self.types)):
            raise ConfigError(f"no type was given for the topics {', '.join(untyped)}")
        check_names("topics", (topic for one in readers for topic in one.topics), self.topics)
        check_names("buckets", (one.bucket for one in self.projections.values()), self.buckets)

    @classmethod
    def load(
        cls,
        directory: Path,
        types: Mapping[str, type[Message]],
        upgrades: Upgrades = NO_UPGRADES,
        mask: Callable[[str], str] = str,
    ) -> Contracts:
        """Read `topics.json` of `directory` and the schemas it names, which are anywhere below `schemas/`."""
        document = json.loads((directory / "topics.json").read_text())
        names = sorted({topic["schema"] for topic in document["topics"].values()})
        return cls(document, {name: load_schema(directory, name) for name in names}, types, upgrades, mask)

    def bounded(self, max_bytes: Mapping[str, int]) -> Contracts:
        """The same contracts with other bounds in bytes for some streams. Raises `ConfigError`."""
        unknown = sorted(set(max_bytes) - set(self.streams))
        if unknown:
            raise ConfigError(f"RATCHET_STREAM_MAX_BYTES: there is no stream {', '.join(unknown)}")
        other = copy.copy(self)
        changed = {name: replace(self.streams[name], max_bytes=size) for name, size in max_bytes.items()}
        other.streams = {**self.streams, **changed}
        return other

    def topic_of(self, subject: str) -> Topic:
        """The topic published on `subject`. Raises `UnknownSubject`."""
        if subject in self.topics and subject in self.topics[subject].subjects:
            return self.topics[subject]
        for pattern, topic in self._patterns:
            if pattern.fullmatch(subject):
                return topic
        raise UnknownSubject(f"no topic has the subject {subject!r}")

    def subjects(self, topic: str) -> list[str]:
        """The subjects of `topic` as a broker's filters: every parameter becomes `*`. Raises `UnknownSubject`."""
        return [re.sub(r"<\w+>", "*", template) for template in self._named(topic).subjects]

    def filters(self, topics: Collection[str]) -> list[str]:
        """The broker's filters for a reader of `topics`: their subjects, and those of older versions of them."""
        older = [name for topic in topics for name in older_versions(self._upgrades, topic) if name not in topics]
        return [subject for topic in (*topics, *older) for subject in self.subjects(topic)]

    def check_strict(self, message: Message) -> bytes:
        """The JSON body of `message`. Raises `UnknownSubject`, or `InvalidMessage` unless the strict view takes it."""
        topic = self.topic_of(message.subject)
        with _bounded():
            body = encode(message)
            _refuse(self._strict[topic.schema], parse(body))
        return body

    def check_strict_json(self, topic: str, body: bytes) -> Message:
        """Read a body at an edge, by the strict view. Raises `UnknownSubject` or `InvalidMessage`."""
        spec = self._named(topic)
        with _bounded():
            parsed = parse(body)
            _refuse(self._strict[spec.schema], parsed)
            return _typed(parsed, self.types[spec.name])

    def read(self, subject: str, body: bytes) -> tuple[Message, int]:
        """Read a body from the bus as it is; returns the message and how many members it does not know.

        Raises `UnknownSubject` or `InvalidMessage`.
        """
        reading = self.read_as(subject, body, ())
        return reading.message, reading.unknown

    def read_as(self, subject: str, body: bytes, topics: Collection[str]) -> Reading:
        """Read a body from the bus, by the open view, and upgrade it to the version that is one of `topics`.

        A message on a subject that is not its own is refused: permissions are given by subject.
        Raises `UnknownSubject` or `InvalidMessage`.
        """
        topic = self.topic_of(subject)
        with _bounded():
            parsed = parse(body)
            unknown = self._check_open(topic, parsed)
            for upgrade in upgrade_path(self._upgrades, topic.name, topics):
                subject = subject.replace(topic.name, upgrade.to, 1)
                topic, parsed = self._named(upgrade.to), _upgraded(upgrade, parsed)
                body, unknown = msgspec.json.encode(parsed), self._check_open(topic, parsed)
            message = _typed(parsed, self.types[topic.name])
        if message.subject != subject:
            raise InvalidMessage("what it says belongs to another subject")
        return Reading(message, unknown, body)

    def _check_open(self, topic: Topic, parsed: Json) -> int:
        """How many members the schema does not know. Raises `InvalidMessage` unless the open view takes it."""
        strict = self._strict[topic.schema]
        if strict.validator.is_valid(parsed):
            return 0
        _refuse(self._open[topic.schema], parsed)
        return _unknown_members(strict, parsed)

    def _named(self, topic: str) -> Topic:
        if topic not in self.topics:
            raise UnknownSubject(f"no topic is named {topic!r}")
        return self.topics[topic]


@dataclass(frozen=True, slots=True)
class Breach:
    """Where and why a message breaks a schema, and by which view: `open` (readers refuse it) or `strict` only."""

    view: str
    path: str
    reason: str


class Views:
    """Both views of one schema, to hold messages against a schema that is not in force."""

    def __init__(self, schema: Json) -> None:
        """Raises `Rejected` unless it is a JSON Schema."""
        try:
            self._strict = _view(schema)
            self._open = _view(open_view(schema))
        except (ValueError, TypeError) as error:
            raise Rejected(f"not a JSON Schema: {str(error).splitlines()[0]}") from error

    def breach(self, parsed: Json) -> Breach | None:
        """What is wrong with a message; None when the strict view takes it, which the open one then does too."""
        for name, view in (("open", self._open), ("strict", self._strict)):
            try:
                with _bounded():
                    _refuse(view, parsed)
            except InvalidMessage as error:
                return Breach(name, error.path, error.reason)
        return None


SCHEMA_ID = "urn:ratchet:schema:"
"""Followed by its name: the `$id` of a schema, by which others refer to it."""


def load_schema(root: Path, name: str) -> Json:
    """The strict schema `name` (`order.v1`) of the contracts in `root`, complete in itself.

    Raises `ConfigError` if there is none, or none of a name that it refers to.
    """
    for path in (root / "schemas").rglob(f"{name}.schema.json"):
        return with_references(root, json.loads(path.read_text()))
    raise ConfigError(f"no schema {name} below {root / 'schemas'}")


def with_references(root: Path, schema: Json) -> Json:
    """`schema`, and embedded in its `$defs` by their names the schemas of `root` that it refers to by their `$id`.

    Such a compound document (JSON Schema 2020-12, section 9.3) needs no other: all that validates, compares or shows
    schemas works on it. Raises `ConfigError` for a reference to no schema of `root`.
    """
    embedded = {name: load_schema(root, name) for name in sorted({*_references(schema)})}
    return {**schema, "$defs": {**embedded, **schema.get("$defs", {})}} if embedded else schema


def _references(schema: Json) -> Iterator[str]:
    """The names of the schemas that a schema refers to, anywhere in it."""
    if isinstance(schema, dict):
        members = cast("dict[str, Json]", schema)
        reference = members.get("$ref")
        if isinstance(reference, str) and reference.startswith(SCHEMA_ID):
            yield reference.removeprefix(SCHEMA_ID).partition("#")[0]
        for part in members.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in cast("list[Json]", schema):
            yield from _references(part)


_ONE = ("items", "additionalProperties", "then", "else")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs")


def open_view(schema: Json) -> Json:
    """`schema` without closed objects and closed enums; types, formats, ranges and conditions (`if`) stay."""
    if not isinstance(schema, dict):
        return schema
    members = cast("dict[str, Json]", schema)
    return {key: _opened(key, value) for key, value in members.items() if not _closes(key, value)}


def _closes(key: str, value: Json) -> bool:
    return key == "enum" or (key == "additionalProperties" and value is False)


def _opened(key: str, value: Json) -> Json:
    if key in _ONE:
        return open_view(value)
    if key in _LIST:
        return [open_view(part) for part in value]
    if key in _BY_NAME:
        return {name: open_view(part) for name, part in value.items()}
    return value


def _dead_letter(topic: str, types: Mapping[str, type[Message]]) -> type[DeadLetter]:
    kind = types.get(topic)
    if kind is None or not issubclass(kind, DeadLetter):
        raise ConfigError("`dead_letters` must name the topic of the dead letters")
    return kind


def _subject_pattern(template: str, parameters: Json) -> re.Pattern[str]:
    parts = [
        f"(?:{parameters[part[1:-1]]['pattern']})" if part.startswith("<") else re.escape(part)
        for part in template.split(".")
    ]
    return re.compile(r"\.".join(parts))


@dataclass(frozen=True, slots=True)
class _View:
    """A schema that messages are held against."""

    validator: jsonschema_rs.Draft202012Validator
    members: frozenset[str]
    """The names of all members that it describes, at any depth."""


def _view(schema: Json) -> _View:
    # Masked: reasons go to logs and dead letters, where the content of messages has no place.
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True, mask="value")
    return _View(validator, frozenset(_members(schema)))


@contextmanager
def _bounded() -> Iterator[None]:
    """Refuses what a library gives up on: JSON nested hundreds of levels deep, text that is no Unicode."""
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


def _refuse(view: _View, parsed: Json) -> None:
    try:
        view.validator.validate(parsed)
    except jsonschema_rs.ValidationError as error:
        raise InvalidMessage(error.message, _pointer(error.instance_path, view.members)) from error


def _upgraded(upgrade: Upgrade, parsed: Json) -> Json:
    try:
        return upgrade.body(parsed)
    except Exception as error:  # the boundary: a message that cannot be upgraded is data, not a crash
        raise InvalidMessage(f"cannot be upgraded to {upgrade.to}: {type(error).__name__}") from error


def _typed(parsed: Json, kind: type[Message]) -> Message:
    try:
        return msgspec.convert(parsed, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        pointer = re.sub(r"\[(\d+)\]|\.", r"/\1", path.rstrip("`"))
        raise InvalidMessage(reason, pointer) from error


def _unknown_members(strict: _View, parsed: Json) -> int:
    kind = jsonschema_rs.ValidationErrorKind.AdditionalProperties
    return sum(len(e.kind.unexpected) for e in strict.validator.iter_errors(parsed) if isinstance(e.kind, kind))


def _pointer(path: Sequence[str | int], members: Collection[str]) -> str:
    """Where it is, with `*` for a member that its sender named: only the schema's names may stand in a log."""
    shown = [part if isinstance(part, int) or part in members else "*" for part in path]
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in shown)


def _members(schema: Json) -> Iterator[str]:
    """The names of all members that a schema describes, at any depth."""
    if isinstance(schema, dict):
        part = cast("dict[str, Json]", schema)
        yield from part.get("properties", {})
        for value in part.values():
            yield from _members(value)
    elif isinstance(schema, list):
        for value in cast("list[Json]", schema):
            yield from _members(value)
