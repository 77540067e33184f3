"""What the registry (`topics.json`) declares: topics, streams, buckets, consumers, projections and programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar

import msgspec

from ratchet.core.errors import ConfigError

_PARAMETER = re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class Topic:
    """A kind of message. `subjects` are templates such as `shop.order.v1.<country>`."""

    name: str
    subjects: tuple[str, ...]
    stream: str
    schema: str = ""
    """Of its bodies; empty: its producers alone read it, and its type says all."""
    description: str = ""
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    summary: str = ""
    """Schema of the summary that a message of this topic has in the header `ratchet-summary`; empty: it has none."""
    redacted: bool = False
    """Its messages hold what people wrote: their publisher takes secrets out of them, and says in a header by which
    rules."""
    ahead: bool = False
    """An outbox stores it before all other messages of its batch, which may go to other streams."""
    heard: bool = False
    """Its readers also listen to it as it is sent (`bus.listener`)."""


@dataclass(frozen=True)
class Stream:
    """A log of messages and its bounds; `None` means unbounded."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["limits", "workqueue"] = "limits"
    """A work queue forgets a message once it is acked."""
    discard: Literal["old", "new"] = "old"
    """What a full stream does: drop the `old`est message, or refuse the `new` one."""
    max_age_s: float | None = None
    max_msgs: int | None = None
    max_bytes: int | None = None
    duplicate_window_s: float = 120.0
    """The broker drops a second message of the same id within this time."""
    allow_atomic: bool = True
    """Whether it takes batches that are stored all or not at all; a work queue does not."""
    append_only: bool = False
    """Whether the broker removes no message of it before its time, not for an admin either."""
    storage: Literal["file", "memory"] = "file"
    """Where the broker keeps it. What is in memory is gone with the broker's process."""
    description: str = ""


@dataclass(frozen=True)
class BucketSpec:
    """A key-value bucket; `history` is how many values of a key are kept. What its keys hold: `bus.stored`."""

    name: str
    history: int = 1
    max_age_s: float | None = None
    """A value that is not written again is gone after this long; None: it stays."""
    max_bytes: int | None = None
    """A bucket of this size refuses further values; None: it grows."""
    description: str = ""
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramSpec:
    """A program that has a user of its own on the broker, and what it does beside all that names it elsewhere."""

    name: str
    description: str = ""
    does_all: bool = False
    """It may send every message and read everything that is stored."""
    writes: tuple[str, ...] = ()
    """Buckets that it changes, where `writers` leaves it out: it stands in for another program."""
    follows: tuple[str, ...] = ()
    """Streams of which it asks how far their consumers are; `*`: all."""
    trims: tuple[str, ...] = ()
    """Streams whose oldest messages it removes."""
    deletes: tuple[str, ...] = ()
    """Streams of which it removes single messages."""
    asks: tuple[str, ...] = ()
    """Keys that it may look up by their whole names, as `<bucket>.<filter>`: it reads nothing else of the bucket, and
    sees no list of them."""
    unbound: tuple[str, ...] = ()
    """Topics that its user does not send where it is for some values of a parameter alone: nothing in their subjects
    says for which one they are."""


@dataclass(frozen=True)
class ConsumerSpec:
    """A durable consumer that a service opens. A `<parameter>` in its name and subjects is filled when it does."""

    name: str
    service: str
    stream: str
    topics: tuple[str, ...]
    """In one batch the topics are handled in this order. Older versions of a topic come upgraded."""
    subjects: tuple[str, ...] = ()
    """Narrower filters than all subjects of the topics, such as one pool of a work queue."""
    batch: int = 256
    """Most messages that are handled together."""
    linger_s: float = 0.02
    """How long a batch waits for more messages."""
    ack_wait_s: float = 30.0
    """The server redelivers after this long without a sign of life; a running handler sends one every third of it."""
    max_deliveries: int = 5
    """A message is dead once its handling failed unexpectedly so often in one process. `Retry` and `Unavailable` are
    no failures: what waits for others may wait for as long as they take."""
    optional: bool = False
    """No message is kept for it: a stream that is full goes on without what it has not read, and it misses that."""

    def filled(self, parameters: Mapping[str, str]) -> ConsumerSpec:
        """With parameters instead of their places. Raises `ConfigError` unless they are those that it names."""
        named = set(_PARAMETER.findall(" ".join((self.name, *self.subjects))))
        if named != set(parameters):
            raise ConfigError(f"consumer {self.name} takes {_listed(named)}, not {_listed(parameters)}")
        subjects = tuple(_fill(subject, parameters) for subject in self.subjects)
        return replace(self, name=_fill(self.name, parameters), subjects=subjects)

    def within(self, bounds: Bounds) -> ConsumerSpec:
        """With the bounds that this installation has of its own."""
        own = {name: value for name, value in asdict(bounds).items() if value is not None}
        return replace(self, **own)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How an installation consumes where that differs from the registry; None is as there."""

    batch: int | None = None
    linger_s: float | None = None
    ack_wait_s: float | None = None


AS_DECLARED = Bounds()
"""All as in the registry."""


@dataclass(frozen=True)
class ProjectionSpec:
    """State that a service folds from a stream; it stands in `bucket` under `<name>.<key>`, its cursor beside it."""

    name: str
    service: str
    stream: str
    topics: tuple[str, ...]
    bucket: str


D = TypeVar("D", "Topic", "Stream", "BucketSpec", "ProgramSpec", "ConsumerSpec", "ProjectionSpec")


def specs(kind: type[D], entries: Any, beside: Collection[str] = ()) -> dict[str, D]:
    """One section of the registry, by name. `Any` because it is JSON; `beside`: members that others read.

    Raises `ConfigError` for a member that is unknown, missing or of a wrong type.
    """
    known = {*beside, *(field.name for field in fields(kind))} - {"name"}
    read: dict[str, D] = {}
    for name, entry in entries.items():
        if unknown := sorted(set(entry) - known):
            raise ConfigError(f"registry, {name}: unknown members {', '.join(unknown)}")
        try:
            read[name] = msgspec.convert({"name": name, **entry}, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"registry, {name}: {error}") from error
    return read


def check_names(what: str, named: Iterable[str], known: Collection[str]) -> None:
    """Raises `ConfigError` when the registry names something that is not there."""
    if missing := sorted(set(named) - set(known)):
        raise ConfigError(f"the registry names {what} that are not there: {', '.join(missing)}")


def covers(pattern: str, subject: str) -> bool:
    """Whether a broker's filter takes every subject of another one: `*` stands for a token, `>` for all that follow."""
    patterns, tokens = pattern.split("."), subject.split(".")
    for place, part in enumerate(patterns):
        if part == ">":
            return len(tokens) > place
        if place >= len(tokens) or tokens[place] == ">" or part not in ("*", tokens[place]):
            return False
    return len(patterns) == len(tokens)


def check_handled(name: str, declared: Iterable[str], handled: Iterable[str]) -> None:
    """Raises `ConfigError` unless the handled topics are those that `name` is declared to read."""
    lacking, surplus = set(declared) - set(handled), set(handled) - set(declared)
    if lacking:
        raise ConfigError(f"{name} has no handler for {_listed(lacking)}, which the registry lists")
    if surplus:
        raise ConfigError(f"{name} handles {_listed(surplus)}, which the registry does not list")


def _fill(template: str, parameters: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda match: parameters[match[1]], template)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no parameters"


def declared(what: str, name: str, specs: Mapping[str, D]) -> D:
    """The spec of that name. Raises `ConfigError` for one that the registry does not have."""
    if name not in specs:
        raise ConfigError(f"the registry has no {what} {name}")
    return specs[name]
