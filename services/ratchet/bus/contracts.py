"""The contracts at run time: which topic a subject belongs to, and whether a message keeps its schema."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from ratchet.bus.deadletter import DeadLetter
from ratchet.bus.failures import Notice
from ratchet.bus.message import Message, Value, encode, mismatch
from ratchet.bus.registry import (
    BucketSpec,
    ConsumerSpec,
    ProgramSpec,
    ProjectionSpec,
    Stream,
    Topic,
    check_names,
    covers,
    specs,
)
from ratchet.bus.schemas import Json, Schema, handleable, load_schema, parse, read_document
from ratchet.core.errors import ConfigError, InvalidMessage, Rejected, UnknownSubject

V = TypeVar("V", bound=Value)

SUBJECTS = 4096
"""Subjects whose topic is remembered: those of most topics are few."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """How the body of an older version of a topic becomes the body of the next.

    A breaking change of a contract is a new topic beside the old one, in the same stream, and an upgrade. A reader of
    the new version then gets messages of both, those of the old one upgraded; a reader of the old one notices nothing.
    """

    to: str
    """The newer topic."""
    body: Callable[[Json], Json]
    """The newer body of an older one that keeps its schema. Pure; ids stay, so that the event is the same one."""


Upgrades = Mapping[str, Upgrade]
"""By the older topic. Versions follow one another: v1 to v2, v2 to v3."""


Report = Callable[[Notice], Message]
"""The message that tells people."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A message that was read from the bus."""

    message: Message
    unknown: int
    """How many members its schema does not know."""
    body: bytes
    """The plain JSON it stands for: as it came, or upgraded."""


class Contracts:
    """Topics, streams and buckets, and the schemas of topics."""

    def __init__(
        self,
        document: Json,
        schemas: Mapping[str, Json],
        types: Mapping[str, type[Message]],
        upgrades: Upgrades | None = None,
        mask: Callable[[str], str] = str,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`types`: topic -> typed mirror. `mask` takes out of a reason what must not stand in logs, and may cut it;
        `redact` takes secrets out of the texts that dead letters keep.

        Raises `ConfigError` for a registry that names what is not there, for a schema that is not one, or cannot be
        opened, for an upgrade that leads out of its stream, where no reader could follow, and for upgrades in a circle.
        """
        self.topics = specs(Topic, document.get("topics", {}))
        self.streams = specs(Stream, document.get("streams", {}))
        self.buckets = specs(BucketSpec, document.get("buckets", {}), beside=("keys",))
        self.consumers = specs(ConsumerSpec, document.get("consumers", {}))
        self.projections = specs(ProjectionSpec, document.get("projections", {}))
        self.programs = specs(ProgramSpec, document.get("programs", {}))
        self.asked = {keys.partition(".")[0] for program in self.programs.values() for keys in program.asks}
        """Buckets whose keys some programs look up by their whole names: the broker answers that directly."""
        self.made_by: str = document.get("made_by", "")
        """What makes streams and buckets, for people who look for one that is missing."""
        self.types = types
        self.mask = mask
        self.redact = redact
        self.report: Report | None = None
        """Makes the message that tells people what the library has noticed; without it the log alone does."""
        self.dead_letter = self._check(document.get("dead_letters", ""), schemas)
        self._patterns = [
            (_subject_pattern(subject, document.get("parameters", {})), topic)
            for topic in self.topics.values()
            for subject in topic.subjects
        ]
        self._known: dict[str, Topic] = {}
        """By subject, the first `SUBJECTS` that were asked for."""
        self._upgrades: Upgrades = upgrades or {}
        for older, upgrade in self._upgrades.items():
            if self._named(older).stream != self._named(upgrade.to).stream:
                raise ConfigError(f"{older} and {upgrade.to} are in different streams")
            _check_ends(self._upgrades, older)
        self._schemas: dict[str, Schema] = {}
        for name, schema in schemas.items():
            try:
                self._schemas[name] = Schema(schema)
            except Rejected as error:
                raise ConfigError(f"schema {name}: {error}") from error

    def _check(self, dead_letters: str, schemas: Mapping[str, Json]) -> type[DeadLetter]:
        """The type of the dead letters. Raises `ConfigError` when the registry names something that is not there."""
        readers = [*self.consumers.values(), *self.projections.values()]
        check_names("streams", (user.stream for user in (*self.topics.values(), *readers)), self.streams)
        check_names("schemas", schema_names(self.topics.values()), schemas)
        if untyped := sorted(set(self.topics) - set(self.types)):
            raise ConfigError(f"no type was given for the topics {', '.join(untyped)}")
        check_names("topics", (topic for reader in readers for topic in reader.topics), self.topics)
        check_names("buckets", (projection.bucket for projection in self.projections.values()), self.buckets)
        for topic in self.topics.values():
            stream = self.streams[topic.stream]
            for subject in self.subjects(topic.name):
                if not any(covers(taken, subject) for taken in stream.subjects):
                    taken = ", ".join(stream.subjects)
                    raise ConfigError(f"stream {stream.name} takes {taken}, but not {subject} of {topic.name}")
        kind = self.types.get(dead_letters)
        if kind is None or not issubclass(kind, DeadLetter):
            raise ConfigError("`dead_letters` must name the topic of the dead letters")
        return kind

    @classmethod
    def load(
        cls,
        directory: Path,
        types: Mapping[str, type[Message]],
        upgrades: Upgrades | None = None,
        mask: Callable[[str], str] = str,
        redact: Callable[[str], str] = str,
    ) -> Contracts:
        """Read `topics.json` of `directory` and the schemas it names, which are anywhere below `schemas/`."""
        document = read_document(directory / "topics.json")
        names = sorted(schema_names(specs(Topic, document.get("topics", {})).values()))
        schemas = {name: load_schema(directory, name) for name in names}
        return cls(document, schemas, types, upgrades, mask, redact)

    def bounded(self, max_bytes: Mapping[str, int]) -> Contracts:
        """The same contracts with other bounds in bytes for some streams. Raises `ConfigError`."""
        unknown = sorted(set(max_bytes) - set(self.streams))
        if unknown:
            raise ConfigError(f"stream_max_bytes names {', '.join(unknown)}; there are {', '.join(self.streams)}")
        other = copy.copy(self)
        changed = {name: replace(self.streams[name], max_bytes=size) for name, size in max_bytes.items()}
        other.streams = {**self.streams, **changed}
        return other

    def topic_of(self, subject: str) -> Topic:
        """The topic published on `subject`. Raises `UnknownSubject`."""
        topic = self._known.get(subject)
        if topic is None:
            topic = self._matching_topic(subject)
            if len(self._known) < SUBJECTS:
                self._known[subject] = topic
        return topic

    def _matching_topic(self, subject: str) -> Topic:
        if subject in self.topics and subject in self.topics[subject].subjects:
            return self.topics[subject]
        for pattern, topic in self._patterns:
            if pattern.fullmatch(subject):
                return topic
        near = [template for topic in self.topics.values() if topic.name in subject for template in topic.subjects]
        hint = f"; its topic has {', '.join(near)}" if near else ""
        raise UnknownSubject(f"no topic has the subject {subject!r}{hint}")

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
        with handleable():
            body, schema = encode(message), self._schemas.get(topic.schema)
            if schema is None:
                _typed(parse(body), self.types[topic.name])
            else:
                schema.check_strict(parse(body))
        return body

    def check_strict_summary(self, message: Message) -> bytes | None:
        """The JSON of the summary of `message`; None for a topic without one.

        Raises `UnknownSubject`, or `InvalidMessage` unless the strict view takes it.
        """
        topic = self.topic_of(message.subject)
        if not topic.summary or message.header_summary is None:
            return None
        with handleable():
            summary = encode(message.header_summary)
            self._schemas[topic.summary].check_strict(parse(summary))
        return summary

    def read_summary(self, subject: str, text: str, kind: type[V]) -> V:
        """Read the summary of a message, by the open view. Raises `UnknownSubject` or `InvalidMessage`."""
        topic = self.topic_of(subject)
        if not topic.summary:
            raise InvalidMessage(f"messages of {topic.name} have no summary")
        with handleable():
            parsed = parse(text.encode())
            self._schemas[topic.summary].check_open(parsed)
            return _typed(parsed, kind)

    def check_strict_json(self, topic: str, body: bytes) -> Message:
        """Read a body at an edge, by the strict view. Raises `UnknownSubject` or `InvalidMessage`."""
        spec = self._named(topic)
        with handleable():
            parsed = parse(body)
            if spec.schema:
                self._schemas[spec.schema].check_strict(parsed)
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
        with handleable():
            parsed = parse(body)
            unknown = self._schemas[topic.schema].check_open(parsed) if topic.schema else 0
            for upgrade in upgrade_path(self._upgrades, topic.name, topics):
                subject = subject.replace(topic.name, upgrade.to, 1)
                topic, parsed = self._named(upgrade.to), _upgraded(upgrade, parsed)
                body, unknown = msgspec.json.encode(parsed), self._schemas[topic.schema].check_open(parsed)
            message = _typed(parsed, self.types[topic.name])
        if message.subject != subject:
            raise InvalidMessage("its content belongs to another subject than the one it came on")
        return Reading(message, unknown, body)

    def _named(self, topic: str) -> Topic:
        if topic not in self.topics:
            raise UnknownSubject(f"no topic is named {topic!r}")
        return self.topics[topic]


def upgrade_path(upgrades: Upgrades, topic: str, topics: Collection[str]) -> list[Upgrade]:
    """The upgrades from `topic` to the first version that is one of `topics`; empty when no later one is."""
    steps: list[Upgrade] = []
    while topic not in topics:
        if topic not in upgrades:
            return []
        steps.append(upgrades[topic])
        topic = upgrades[topic].to
    return steps


def older_versions(upgrades: Upgrades, topic: str) -> Iterator[str]:
    """The older versions that lead to `topic`, nearest first."""
    for older, upgrade in upgrades.items():
        if upgrade.to == topic:
            yield older
            yield from older_versions(upgrades, older)


def _check_ends(upgrades: Upgrades, topic: str) -> None:
    """Raises `ConfigError` unless the upgrades from `topic` on end with a newest version."""
    passed = [topic]
    while (upgrade := upgrades.get(passed[-1])) is not None:
        if upgrade.to in passed:
            raise ConfigError(f"upgrades go in a circle: {', '.join((*passed, upgrade.to))}")
        passed.append(upgrade.to)


def _subject_pattern(template: str, parameters: Json) -> re.Pattern[str]:
    parts: list[str] = []
    for part in template.split("."):
        if not part.startswith("<"):
            parts.append(re.escape(part))
        elif part[1:-1] in parameters:
            parts.append(f"(?:{parameters[part[1:-1]]['pattern']})")
        else:
            raise ConfigError(f"`parameters` of the registry lacks {part}, which {template} names")
    return re.compile(r"\.".join(parts))


def _upgraded(upgrade: Upgrade, parsed: Json) -> Json:
    try:
        return upgrade.body(parsed)
    except Exception as error:  # the boundary: a message that cannot be upgraded is data, not a crash
        raise InvalidMessage(f"cannot be upgraded to {upgrade.to}: {type(error).__name__}") from error


def schema_names(topics: Iterable[Topic]) -> set[str]:
    """The schemas of bodies and of summaries."""
    return {name for topic in topics for name in (topic.schema, topic.summary) if name}


def _typed(parsed: Json, kind: type[V]) -> V:
    try:
        return msgspec.convert(parsed, kind)
    except msgspec.ValidationError as error:
        reason, place = mismatch(error)
        steps = place.removeprefix("$").replace("[...]", "[*]")  # a member that its sender named
        raise InvalidMessage(reason, re.sub(r"\[(\d+|\*)\]|\.", r"/\1", steps)) from None
