"""The broker in memory: buckets with compare-and-set, streams with deduplication, and faults on demand.

Values pass through JSON and messages through their strict contract, as with the real one. Every write can be made to
fail before or after it took effect: see `FakeBus.faults`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ratchet.bus.contracts import Contracts
from ratchet.bus.kv import Entry, entry_of
from ratchet.bus.message import Cause
from ratchet.bus.received import Received
from ratchet.contract import Message
from ratchet.errors import BusUnavailable, Conflict, Unreadable
from ratchet.service.contracts import load_contracts
from tests.support.fake_clock import FakeClock


class Killed(Exception):
    """The process died at this write."""


@dataclass
class Faults:
    """Which write fails, counted from 1 over buckets and streams, and how."""

    at: int | None = None
    after_effect: bool = False
    error: type[Exception] = Killed
    writes: int = 0
    log: list[str] = field(default_factory=list)

    def write(self, name: str, effect: Callable[[], Any]) -> Any:
        """Run `effect` unless it is the one that fails before it."""
        self.writes += 1
        self.log.append(name)
        hit = self.writes == self.at
        if hit and not self.after_effect:
            raise self.error(f"before {name}")
        result = effect()
        if hit:
            raise self.error(f"after {name}")
        return result


class FakeBucket:
    """A typed view on the shared bytes of one bucket, with the methods of `bus.kv.Bucket`."""

    def __init__(self, name: str, kind: Any, store: _Store, faults: Faults) -> None:
        self._name = name
        self._kind = kind
        self._store = store
        self._faults = faults

    async def get(self, key: str) -> Entry[Any] | None:
        found = self._store.entries.get(key)
        return entry_of(f"{self._name}/{key}", found[0], found[1], self._kind) if found else None

    async def create(self, key: str, value: Any) -> int:
        if key in self._store.entries:
            raise Conflict(f"{key} was changed by somebody else")
        return self._write(key, value)

    async def update(self, key: str, value: Any, revision: int) -> int:
        found = self._store.entries.get(key)
        if found is None or found[1] != revision:
            raise Conflict(f"{key} was changed by somebody else")
        return self._write(key, value)

    async def put(self, key: str, value: Any) -> int:
        return self._write(key, value)

    async def delete(self, key: str) -> None:
        self._store.entries.pop(key, None)
        self._store.touch()

    async def change(self, key: str, fn: Callable[[Any], Any]) -> Any:
        entry = await self.get(key)
        value = fn(entry.value if entry else None)
        if entry is None or value != entry.value:
            self._write(key, value)
        return value

    async def keys(self, prefix: str | None = None) -> list[str]:
        return [key for key in sorted(self._store.entries) if prefix is None or key.startswith(f"{prefix}.")]

    async def below(self, prefix: str) -> dict[str, Entry[Any] | Unreadable]:
        found: dict[str, Entry[Any] | Unreadable] = {}
        for key in await self.keys(prefix):
            body, revision = self._store.entries[key]
            try:
                found[key] = entry_of(f"{self._name}/{key}", body, revision, self._kind)
            except Unreadable as error:
                found[key] = error
        return found

    async def items(self, select: Callable[[str], bool] = lambda _: True) -> dict[str, Entry[Any]]:
        found = {key: await self.get(key) for key in sorted(self._store.entries) if select(key)}
        return {key: entry for key, entry in found.items() if entry is not None}

    async def watch(self, select: Callable[[str], bool] = lambda _: True) -> AsyncIterator[list[tuple[str, Any]]]:
        known: dict[str, int] = {}
        while True:
            changed = self._store.changed
            now = await self.items(select)
            newer = [(key, entry) for key, entry in now.items() if known.get(key) != entry.revision]
            yield newer + [(key, None) for key in known.keys() - now.keys()]
            known = {key: entry.revision for key, entry in now.items()}
            await changed.wait()

    def _write(self, key: str, value: Any) -> int:
        body = msgspec.json.encode(value)

        def effect() -> int:
            self._store.sequence += 1
            self._store.entries[key] = (body, self._store.sequence)
            self._store.touch()
            return self._store.sequence

        return self._faults.write(f"{self._name}/{key}", effect)


@functools.cache
def _contracts() -> Contracts:
    """Compiled once for all tests."""
    return load_contracts()


@dataclass
class _Store:
    entries: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    sequence: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def touch(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeBus:
    """Publishes into lists and hands out buckets."""

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self.now = clock or FakeClock()
        self.contracts = _contracts()
        self.faults = Faults()
        self.streams: dict[str, list[Received[Any]]] = {}
        self.duplicates = 0
        """Messages that the broker knew already."""
        self._ids: dict[str, set[str]] = {}
        self._stores: dict[str, _Store] = {}

    def bucket(self, name: str, kind: Any) -> Any:
        return FakeBucket(name, kind, self._stores.setdefault(name, _Store()), self.faults)

    async def publish(self, message: Message, *, cause: Received[Any] | Cause | None = None) -> None:
        await self.publish_all([message], cause=cause)

    async def publish_all(self, messages: Sequence[Message], *, cause: Received[Any] | Cause | None = None) -> None:
        for message in messages:
            self.contracts.check_strict(message)
        if messages:
            origin = cause.as_cause() if isinstance(cause, Received) else cause
            self.faults.write("publish", lambda: [self._store_one(message, origin) for message in messages])

    def arrive(self, messages: Sequence[Message]) -> None:
        """Messages of somebody else: they are stored, and no fault of ours can touch them."""
        for message in messages:
            self.contracts.check_strict(message)
            self._store_one(message)

    async def last_sequence(self, stream: str) -> int:
        return len(self.streams.get(stream, ()))

    async def ensure_streams(self) -> None:
        return None

    async def check(self) -> str | None:
        return None

    async def close(self) -> None:
        return None

    def published(self, kind: type[Any] | None = None) -> list[Any]:
        """Everything that is in the streams, by stream and in order; only one kind of message if asked for."""
        every = [received.message for stream in self.streams.values() for received in stream]
        return [message for message in every if kind is None or isinstance(message, kind)]

    def unavailable_at(self, write: int) -> None:
        """The broker does not answer at this write."""
        self.faults.at, self.faults.error = write, BusUnavailable

    def _store_one(self, message: Message, cause: Cause | None = None) -> None:
        name = self.contracts.topic_of(message.subject).stream
        stream, ids = self.streams.setdefault(name, []), self._ids.setdefault(name, set())
        if message.event_id in ids:
            self.duplicates += 1
            return
        ids.add(message.event_id)
        stream.append(
            Received(
                message=msgspec.json.decode(msgspec.json.encode(message), type=type(message)),
                subject=message.subject,
                stream=name,
                sequence=len(stream) + 1,
                delivered=1,
                event_id=message.event_id,
                time=self.now(),
                correlation_id=cause.correlation_id if cause else message.event_id,
                causation_id=cause.event_id if cause else None,
            )
        )
