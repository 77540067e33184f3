"""What is true now: typed values in a NATS key-value bucket, changed by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js import errors as js_errors
from nats.js.kv import KeyValue

from ratchet.bus.connection import Bus
from ratchet.bus.message import decode, mismatch
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.pull_consumer import handed_out
from ratchet.bus.stream_configs import BUCKET
from ratchet.core.errors import BusUnavailable, Conflict, Rejected, Unreadable

log = structlog.get_logger()

V = TypeVar("V")

POLL_S = 2.0
"""How often a watch that hears nothing asks whether there is something to hear: a broker that was killed says nothing
for 15-20 s. The question is for one number, however many keys there are."""
_WRONG_REVISION = {10071, 10164}
"""Codes of the broker's refusal of a delete whose revision is not the newest: nats-py names those of an update only."""
_GONE = {"DEL", "PURGE"}
"""What a marker of a deleted key says of itself."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A value and the revision that a compare-and-set must name."""

    value: V
    revision: int


class Bucket(Generic[V]):
    """One bucket whose values are all of one type; `msgspec.Raw` stands for whatever is stored, JSON or not.

    Raises `BusUnavailable` while the broker does not answer, `Unreadable` for a value of another type, and `Rejected`
    for a key that cannot be one and for a value that is too large.
    """

    def __init__(self, bus: Bus, name: str, kind: type[V]) -> None:
        self._bus = bus
        self._jetstream = bus.nc.jetstream()
        self._name = name
        self._stream = f"{BUCKET}{name}"
        bus.used.add(self._stream)
        self._prefix = f"$KV.{name}."
        self._kind = kind
        self._kv: KeyValue | None = None

    async def get(self, key: str) -> Entry[V] | None:
        """The current value, or None when there is none."""
        with _classified(key):
            try:
                entry = await (await self._open()).get(key)
            except js_errors.KeyNotFoundError:
                return None
        assert entry.value is not None  # noqa: S101 - a found key has a value
        return entry_of(f"{self._name}/{key}", entry.value, entry.revision or 0, self._kind)

    async def create(self, key: str, value: V) -> int:
        """Write a key that must not exist yet; returns its revision. Raises `Conflict` if it does."""
        with _classified(key):
            return await (await self._open()).create(key, msgspec.json.encode(value))

    async def update(self, key: str, value: V, revision: int) -> int:
        """Write only if the key is still at `revision`; returns the new one. Raises `Conflict` if it is not."""
        with _classified(key):
            return await (await self._open()).update(key, msgspec.json.encode(value), last=revision)

    async def put(self, key: str, value: V) -> int:
        """Write whatever is there; returns the new revision."""
        with _classified(key):
            return await (await self._open()).put(key, msgspec.json.encode(value))

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Remove a key; an absent one is left alone. With the `revision` that was read: raises `Conflict` if the value
        has changed since."""
        with _classified(key):
            await (await self._open()).delete(key, last=revision)

    async def change(self, key: str, fn: Callable[[V | None], V]) -> V:
        """Read, apply `fn`, write; again from the start whenever another writer was faster."""
        while True:
            entry = await self.get(key)
            value = fn(entry.value if entry else None)
            if entry is not None and value == entry.value:
                return value
            with suppress(Conflict):
                if entry is None:
                    await self.create(key, value)
                else:
                    await self.update(key, value, entry.revision)
                return value

    async def keys(self, prefix: str | None = None) -> list[str]:
        """All keys, or those that are `prefix`, a dot and more: sorted, read at once. Deleted ones are left out."""
        below = ">" if prefix is None else f"{prefix}.>"
        return sorted(map(self._key, await self._newest(below, headers_only=True)))

    async def below(self, prefix: str) -> dict[str, Entry[V] | Unreadable]:
        """Entries whose keys are `prefix`, a dot and more, by key, read at once; an unreadable one is its error."""
        entries: dict[str, Entry[V] | Unreadable] = {}
        for message in sorted(await self._newest(f"{prefix}.>"), key=self._key):
            try:
                entries[self._key(message)] = self._entry(message)
            except Unreadable as error:
                entries[self._key(message)] = error
        return entries

    async def items(self, select: Callable[[str], bool] = lambda _: True) -> dict[str, Entry[V]]:
        """All entries whose key is selected, by key, read at once. Raises `Unreadable` for the first that is."""
        selected = [message for message in await self._newest(">") if select(self._key(message))]
        return {self._key(message): self._entry(message) for message in sorted(selected, key=self._key)}

    async def newest_change(self) -> tuple[str, int]:
        """Which bucket of this name it is (when it was made), and the revision of its newest change.

        Who reads all of a bucket again and again asks first whether there is something new.
        """
        with _classified(self._name):
            info: Any = await self._jetstream.stream_info(self._stream)
        return str(info.created), info.state.last_seq

    async def filled(self) -> float:
        """How much of the bytes that it may hold it holds: a full bucket refuses writes."""
        with _classified(self._name):
            info: Any = await self._jetstream.stream_info(self._stream)
        most: int = info.config.max_bytes
        return info.state.bytes / most if most > 0 else 0.0

    async def watch(
        self, select: Callable[[str], bool] = lambda _: True
    ) -> AsyncIterator[list[tuple[str, Entry[V] | None]]]:
        """Changes in batches of (key, entry), or (key, None) for a deleted key. The first batch holds all entries.

        A batch ends with the first change, or, empty, after two seconds. Only what changed is read. Heals by itself:
        while the broker is away it waits, and afterwards it reads everything once more. Ends when the consumer stops
        iterating, and with `Unreadable` at a value of another type.
        """
        known: dict[str, int] = {}
        while True:
            try:
                with _classified(self._name):
                    async with aclosing(self._batches()) as batches:
                        whole = True
                        async for batch in batches:
                            yield self._news(batch, known, select, whole=whole)
                            whole = False
            except BusUnavailable as error:
                log.debug("watch waits for the broker", bucket=self._name, reason=str(error))
            await asyncio.sleep(POLL_S / 4)

    def _news(
        self, batch: Sequence[Msg], known: dict[str, int], select: Callable[[str], bool], *, whole: bool
    ) -> list[tuple[str, Entry[V] | None]]:
        """What differs from `known` (revisions by key), which is brought up to date; `whole`: there is no more."""
        newest = {self._key(changed): changed for changed in batch if select(self._key(changed))}
        news: list[tuple[str, Entry[V] | None]] = []
        for key, message in newest.items():
            revision = message.metadata.sequence.stream
            if is_marker(message):
                if known.pop(key, None) is not None:
                    news.append((key, None))
            elif known.get(key) != revision:
                known[key] = revision
                news.append((key, self._entry(message)))
        for key in known.keys() - newest.keys() if whole else ():
            del known[key]
            news.append((key, None))
        return news

    async def _newest(self, below: str, *, headers_only: bool = False) -> list[Msg]:
        """The newest message of each key that is not deleted."""
        with _classified(self._name):
            async with aclosing(self._batches(below, headers_only=headers_only, once=True)) as batches:
                async for newest in batches:
                    return [message for message in newest if not is_marker(message)]
        raise BusUnavailable(f"broker does not answer for {self._name}: it sent less than there is")

    async def _batches(
        self, below: str = ">", *, headers_only: bool = False, once: bool = False
    ) -> AsyncGenerator[list[Msg]]:
        """The newest message of every key at once, then, unless `once`, what comes; empty batches while nothing comes.

        Ends when the broker has forgotten what was read, or what it holds is not what came.
        """
        reader = OrderedReader(
            self._bus, self._stream, [self._prefix + below], start=None, headers_only=headers_only, linger_s=0.0
        )
        try:
            made, last = await self.newest_change()
            await reader.open()
            newest: dict[str, Msg] = {}
            # To the end: a value that is replaced before it was sent comes later, as the one that replaced it.
            while not reader.is_at_end(await reader.state()):
                batch = await reader.next(POLL_S)
                newest |= {message.subject: message for message in batch}
                if not batch and not reader.is_at_end(await reader.state()):
                    return
            if once:
                await reader.close()  # first: a pull under way would have the consumer made again
                await reader.delete()
                yield [*newest.values()]
                return
            yield [*newest.values()]
            seen = max([last, *(message.metadata.sequence.stream for message in newest.values())])
            while True:
                batch = await reader.next(POLL_S)
                if batch:
                    seen = batch[-1].metadata.sequence.stream
                elif await self.newest_change() != (made, seen):
                    if not reader.has_waiting:
                        return
                    continue
                yield batch
        finally:
            await reader.close()

    def _key(self, message: Msg) -> str:
        return message.subject.removeprefix(self._prefix)

    def _entry(self, message: Msg) -> Entry[V]:
        where, revision = f"{self._name}/{self._key(message)}", message.metadata.sequence.stream
        return entry_of(where, message.data, revision, self._kind)

    async def _open(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._jetstream.key_value(self._name)
        return self._kv


async def has_key(bus: Bus, bucket: str, key: str) -> bool:
    """Whether a bucket has a value under a key. Raises `BusUnavailable`, also where the program may not ask."""
    newest = await handed_out(bus.nc, f"{BUCKET}{bucket}.$KV.{bucket}.{key}")
    return newest is not None and not is_marker(newest)


def is_marker(message: Msg) -> bool:
    """Whether it says that its key is deleted."""
    return (message.headers or {}).get("KV-Operation") in _GONE


def entry_of(where: str, stored: bytes, revision: int, kind: type[V]) -> Entry[V]:
    """An entry of a bucket. Raises `Unreadable`, but never for `msgspec.Raw`, which is the bytes themselves."""
    if kind is msgspec.Raw:
        return Entry(cast("V", msgspec.Raw(stored)), revision)
    try:
        return Entry(decode(stored, kind), revision)
    except msgspec.DecodeError as error:
        reason, place = mismatch(error)
        raise Unreadable(where, revision, f"{place}: {reason}" if place else reason, stored) from None


@contextmanager
def _classified(what: str) -> Iterator[None]:
    try:
        yield
    except js_errors.KeyWrongLastSequenceError as error:
        raise Conflict(f"{what} was changed by another writer") from error
    except js_errors.InvalidKeyError as error:
        raise Rejected(f"{what!r} cannot be a key: letters, digits and - / _ = . can") from error
    except nats.errors.MaxPayloadError as error:
        raise Rejected(f"the value of {what} is larger than the broker takes") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        if isinstance(error, js_errors.APIError) and error.err_code in _WRONG_REVISION:
            raise Conflict(f"{what} was changed by another writer") from error
        raise BusUnavailable(f"broker does not answer for {what}: {error or type(error).__name__}") from error
