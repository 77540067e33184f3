"""What each program may do on the broker: derived from the registry, for the permissions of its user there.

The broker grants subjects. A right to publish a topic is its subjects; a right to read a stream or a bucket is those of
the broker's own API that a reader of this library uses, and no other: nothing here lets a program change or remove a
stream, or another program's consumer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ratchet.bus.contracts import Contracts
from ratchet.bus.nats_client import API
from ratchet.bus.registry import ConsumerSpec, covers
from ratchet.bus.stream_configs import BUCKET
from ratchet.core.errors import ConfigError

OWN_PART = "<program>"
"""In a subject: the name of who sends there."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a program may do, in the registry's words. All names are sorted."""

    sends: tuple[str, ...]
    """Topics that it publishes."""
    reads: tuple[str, ...]
    """Streams whose messages it reads, in order and from any place."""
    consumes: tuple[str, ...]
    """Its durable consumers; `<pool>` stands for any."""
    hears: tuple[str, ...]
    """Topics that it listens to as they are sent."""
    writes: tuple[str, ...]
    """Buckets that it changes, and reads."""
    opens: tuple[str, ...]
    """Buckets that it reads."""
    follows: tuple[str, ...]
    """Streams of which it asks how far their consumers are, and since when the oldest message waits."""
    trims: tuple[str, ...]
    """Streams whose oldest messages it removes: the broker cannot tell this from removing all."""
    deletes: tuple[str, ...]
    """Streams of which it removes single messages."""
    asks: tuple[str, ...]
    """Keys of buckets that it looks up by their whole names."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Filters of subjects, as the broker's configuration has them."""

    publish: tuple[str, ...]
    """No two of them take the same subject."""
    denied: tuple[str, ...]
    """Of those that `publish` lets through."""
    hear: tuple[str, ...] = ()
    """Beside its answers."""


def rights_of(contracts: Contracts, program: str) -> Rights:
    """The rights of a program that the registry names. Raises `ConfigError` for another one."""
    if program not in contracts.programs:
        raise ConfigError(f"the registry has no program {program}; it has {', '.join(sorted(contracts.programs))}")
    spec = contracts.programs[program]
    read = {topic.name for topic in contracts.topics.values() if program in topic.consumers}
    projected = {each.stream for each in contracts.projections.values() if each.service == program}
    reads = {contracts.topics[topic].stream for topic in read} | projected
    sends = {topic.name for topic in contracts.topics.values() if program in topic.producers}
    opens = {bucket.name for bucket in contracts.buckets.values() if program in bucket.readers}
    if spec.does_all:
        sends, reads, opens = {*contracts.topics}, {*contracts.streams}, {*contracts.buckets}
    writes = {bucket.name for bucket in contracts.buckets.values() if program in bucket.writers} | {*spec.writes}
    queues = {stream.name for stream in contracts.streams.values() if stream.retention == "workqueue"}
    return Rights(
        sends=_sorted(sends),
        reads=_sorted(reads - queues),
        consumes=_sorted(spec.name for spec in _consumers(contracts, program)),
        hears=_sorted(topic for topic in read if contracts.topics[topic].heard),
        writes=_sorted(writes),
        opens=_sorted(opens - writes),
        follows=_sorted(_streams(contracts, spec.follows)),
        trims=_sorted(_streams(contracts, spec.trims)),
        deletes=_sorted(spec.deletes),
        asks=_sorted(spec.asks),
    )


def permissions_of(contracts: Contracts, program: str) -> Permissions:
    """Those of the user of a program. Raises `ConfigError`."""
    rights = rights_of(contracts, program)
    durables = _consumers(contracts, program)
    publish = {
        f"{API}.STREAM.NAMES",
        *_sending(contracts, program, rights.sends),
        *(subject for stream in rights.reads for subject in _reading(stream)),
        *(subject for spec in durables for subject in _consuming(spec)),
        *(subject for bucket in (*rights.opens, *rights.writes) for subject in _reading(f"{BUCKET}{bucket}")),
        *(f"{API}.DIRECT.GET.{BUCKET}{bucket}.>" for bucket in {*rights.opens, *rights.writes} & contracts.asked),
        *(f"$KV.{bucket}.>" for bucket in rights.writes),
        *(subject for stream in rights.follows for subject in _following(stream)),
        *(subject for stream in rights.trims for subject in (*_following(stream), f"{API}.STREAM.PURGE.{stream}")),
        *(f"{API}.STREAM.MSG.DELETE.{stream}" for stream in rights.deletes),
        *(_asking(re.sub(r"<\w+>", "*", keys)) for keys in rights.asks),
    }
    heard = (subject for topic in rights.hears for subject in contracts.subjects(topic))
    denied = _of_others(contracts, {*rights.reads}, {spec.name for spec in durables})
    return Permissions(_least(publish), _sorted(denied), _sorted(heard))


@dataclass(frozen=True, slots=True)
class Part:
    """Some values of a parameter of subjects: those that a user's messages are for."""

    parameter: str
    values: frozenset[str]
    """`*` is all of them."""
    bare: str
    """The value that the subject without the parameter stands for."""


def permissions_of_part(contracts: Contracts, program: str, part: Part) -> Permissions:
    """Those of a program outside of the system, which publishes what `program` does, for a part alone.

    It reads nothing but its answers, and the keys that it may look up; of the streams that it publishes to it may ask
    how far they are, which shows it when the broker has lost what it had acknowledged.
    """
    unbound, rights = contracts.programs[program].unbound, rights_of(contracts, program)
    topics = [contracts.topics[topic] for topic in rights.sends if topic not in unbound]
    counted = {f"{API}.STREAM.INFO.{topic.stream}" for topic in topics}
    place = f"<{part.parameter}>"
    asked = {_asking(keys.replace(place, value)) for keys in rights.asks for value in part.values}
    sent = {subject for topic in topics for subject in _filled(topic.subjects, part)}
    return Permissions(_least(counted | asked | sent), ())


def _sending(contracts: Contracts, program: str, topics: Iterable[str]) -> Iterator[str]:
    """The subjects of topics, and the question of how far a stream is; of a log that each program has a part of, its
    own part and the question of how that ends."""
    for topic in topics:
        stream = contracts.topics[topic].stream
        yield f"{API}.STREAM.INFO.{stream}"
        for template in contracts.topics[topic].subjects:
            subject = re.sub(r"<\w+>", "*", template.replace(OWN_PART, program))
            yield subject
            if OWN_PART in template:
                yield f"{API}.DIRECT.GET.{stream}.{subject}"


def _filled(templates: Sequence[str], part: Part) -> Iterator[str]:
    """The subjects of a topic for a part; all of a topic that does not know the parameter."""
    place = f"<{part.parameter}>"
    has_place = any(place in template for template in templates)
    for template in templates:
        if place in template:
            yield from (template.replace(place, value) for value in part.values if value != part.bare)
        elif not has_place or part.values & {part.bare, "*"}:
            yield template


def _reading(stream: str) -> Iterator[str]:
    """A reader makes a consumer of a name that it draws, pulls from it, and has it forgotten."""
    yield f"{API}.STREAM.INFO.{stream}"
    yield f"{API}.STREAM.MSG.GET.{stream}"
    yield f"{API}.DIRECT.GET.{stream}"
    yield f"{API}.CONSUMER.CREATE.{stream}.>"
    for verb in ("INFO", "MSG.NEXT", "DELETE"):
        yield f"{API}.CONSUMER.{verb}.{stream}.*"


def _asking(keys: str) -> str:
    """One key by its whole name: every other question could be for a list of them."""
    bucket, _, named = keys.partition(".")
    return f"{API}.DIRECT.GET.{BUCKET}{bucket}.$KV.{bucket}.{named}"


def _consuming(spec: ConsumerSpec) -> Iterator[str]:
    durable = re.sub(r".*<\w+>.*", "*", spec.name)  # the broker's filters know whole tokens only
    yield f"{API}.CONSUMER.DURABLE.CREATE.{spec.stream}.{durable}"
    for verb in ("INFO", "MSG.NEXT"):
        yield f"{API}.CONSUMER.{verb}.{spec.stream}.{durable}"
    yield f"{API}.STREAM.MSG.GET.{spec.stream}"
    yield f"{API}.STREAM.INFO.{spec.stream}"
    yield f"$JS.ACK.{spec.stream}.{durable}.>"


def _following(stream: str) -> Iterator[str]:
    for verb in ("STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.LIST"):
        yield f"{API}.{verb}.{stream}"
    yield f"{API}.CONSUMER.INFO.{stream}.*"


def _of_others(contracts: Contracts, streams: Collection[str], own: Collection[str]) -> Iterator[str]:
    """Pulling from another program's durable consumer would take its messages; and none is removed."""
    for spec in contracts.consumers.values():
        if spec.stream in streams:
            for named in (f"DELETE.{spec.stream}.{spec.name}", *_creating(spec)):
                yield f"{API}.CONSUMER.{named}"
            if spec.name not in own:
                yield f"{API}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.name}"


def _creating(spec: ConsumerSpec) -> tuple[str, str]:
    """As a reader would, with another place to begin, or other subjects."""
    return f"CREATE.{spec.stream}.{spec.name}", f"CREATE.{spec.stream}.{spec.name}.>"


def _consumers(contracts: Contracts, program: str) -> list[ConsumerSpec]:
    return [spec for spec in contracts.consumers.values() if spec.service == program]


def _streams(contracts: Contracts, named: Collection[str]) -> set[str]:
    return {*contracts.streams} if "*" in named else {*named}


def _least(subjects: Collection[str]) -> tuple[str, ...]:
    """Without those that another one covers: `a.b.c` beside `a.b.*`."""
    wide = [subject for subject in subjects if subject.endswith((".*", ".>"))]
    return _sorted(
        subject for subject in subjects if not any(other != subject and covers(other, subject) for other in wide)
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
