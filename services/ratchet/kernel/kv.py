"""What is true now: typed values in a NATS key-value bucket, changed by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
import nats.errors
from nats.js import JetStreamContext
from nats.js import errors as js_errors
from nats.js.kv import KeyValue

from ratchet.kernel.errors import BusUnavailable, Conflict
from ratchet.kernel.tasks import end

V = TypeVar("V")

POLL_S = 2.0
"""A key-value watch stalls for 15-20 s after the broker was killed, so it only hastens the poll."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A value and the revision that a compare-and-set must name."""

    value: V
    revision: int


class Bucket(Generic[V]):
    """One bucket whose values are all of one type; `msgspec.Raw` stands for whatever is stored, JSON or not.

    Raises `BusUnavailable` while the broker does not answer, `msgspec.MsgspecError` for a value of another type.
    """

    def __init__(self, jetstream: JetStreamContext, name: str, kind: type[V]) -> None:
        self._jetstream = jetstream
        self._name = name
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
        return Entry(decoded(entry.value, self._kind), entry.revision or 0)

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

    async def delete(self, key: str) -> None:
        """Remove a key; an absent one is left alone."""
        with _classified(key):
            await (await self._open()).delete(key)

    async def change(self, key: str, fn: Callable[[V | None], V]) -> V:
        """Read, apply `fn`, write; again from the start whenever somebody else was faster."""
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

    async def keys(self) -> list[str]:
        """All keys, sorted. Deleted ones are left out."""
        found = [key for key in await self._subjects() if await self.get(key) is not None]
        return sorted(found)

    async def items(self, select: Callable[[str], bool] = lambda _: True) -> dict[str, Entry[V]]:
        """All entries whose key is selected, by key."""
        names = sorted(filter(select, await self._subjects()))
        entries = await asyncio.gather(*(self.get(name) for name in names))
        return {name: entry for name, entry in zip(names, entries, strict=True) if entry is not None}

    async def watch(
        self, select: Callable[[str], bool] = lambda _: True
    ) -> AsyncIterator[list[tuple[str, Entry[V] | None]]]:
        """What has changed, look by look: (key, entry), or (key, None) once it is deleted. The first look finds all.

        Heals by itself: changes are looked for as soon as the broker reports one and every two seconds; a look that
        finds none is told too. While the broker is away it waits. Ends only when the consumer stops iterating.
        """
        known: dict[str, int] = {}
        changed = asyncio.Event()
        hints = asyncio.create_task(self._hint(changed))
        try:
            while True:
                changed.clear()
                try:
                    found = await self._changes_since(known, select)
                except BusUnavailable:
                    pass
                else:
                    yield found
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await changed.wait()
        finally:
            await end(hints)

    async def _changes_since(
        self, known: dict[str, int], select: Callable[[str], bool]
    ) -> list[tuple[str, Entry[V] | None]]:
        """What is not as `known`, which is brought up to date. Raises `BusUnavailable`."""
        now = await self.items(select)
        changes = list(_changes(known, now))
        known.clear()
        known.update({key: entry.revision for key, entry in now.items()})
        return changes

    async def _hint(self, changed: asyncio.Event) -> None:
        """Set `changed` whenever the broker's own watch reports something; start over when the watch breaks."""
        while True:
            try:
                await self._hint_while_watching(changed)
            except nats.errors.Error:
                await asyncio.sleep(POLL_S)

    async def _hint_while_watching(self, changed: asyncio.Event) -> None:
        watcher = await (await self._open()).watchall(meta_only=True)
        while True:
            with suppress(nats.errors.TimeoutError):
                if await watcher.updates(timeout=POLL_S) is not None:
                    changed.set()

    async def _open(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._jetstream.key_value(self._name)
        return self._kv

    async def _subjects(self) -> list[str]:
        prefix = f"$KV.{self._name}."
        with _classified(self._name):
            info: Any = await self._jetstream.stream_info(f"KV_{self._name}", subjects_filter=prefix + ">")
        return [subject.removeprefix(prefix) for subject in (info.state.subjects or {})]


def decoded(stored: bytes, kind: type[V]) -> V:
    """A value of a bucket. Raises `msgspec.MsgspecError`, except for `msgspec.Raw`, which is the bytes themselves."""
    return cast("V", msgspec.Raw(stored)) if kind is msgspec.Raw else msgspec.json.decode(stored, type=kind)


def _changes(known: dict[str, int], now: dict[str, Entry[V]]) -> Iterator[tuple[str, Entry[V] | None]]:
    for key, entry in now.items():
        if known.get(key) != entry.revision:
            yield key, entry
    for key in known.keys() - now.keys():
        yield key, None


@contextmanager
def _classified(what: str) -> Iterator[None]:
    try:
        yield
    except js_errors.KeyWrongLastSequenceError as error:
        raise Conflict(f"{what} was changed by somebody else") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(f"broker does not answer for {what}: {error or type(error).__name__}") from error
