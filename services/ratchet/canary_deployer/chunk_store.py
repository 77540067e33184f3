"""The trajectories of one role's rollout, in chunks beside its record, safe against a crash anywhere.

A chunk is never overwritten: each state of it has a name of its own, `<role>.<number>.<token>`. Chunks are written
first, then the record that names them, by compare-and-set; only after that the ones that it no longer names are
deleted. A crash before the record leaves chunks that no record names, one after it leaves old ones: both go with the
next save that succeeds. Whoever lost the compare-and-set deletes nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence, Set as AbstractSet
from contextlib import suppress
from typing import Any, TypeVar

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.domain.rollout_statistics import ChunkName
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.errors import RatchetError, Unavailable, Unreadable

T = TypeVar("T")

AT_ONCE = 32
"""Requests on their way to the broker at the same time."""


class ChunksLost(RatchetError):
    """A record names a chunk that the bucket does not hold, or holds as something else."""


class ChunkStore:
    """Writes and reads chunks. Its caller takes care that one thing happens at a time."""

    def __init__(self, role: str, bucket: Bucket[Chunk]) -> None:
        self._role = role
        self._bucket = bucket
        self._names: dict[int, ChunkName] = {}
        self._stored: set[str] | None = None
        """Names in the bucket; None until they have been listed."""

    def begin(self) -> None:
        """A new rollout has no chunks yet."""
        self._names = {}

    async def load(self, names: Sequence[ChunkName]) -> list[Chunk]:
        """The chunks that a record names, in its order. Raises `ChunksLost`."""
        self._names, self._stored = {one.number: one for one in names}, None
        return await self._all([self._read(one.name) for one in names])

    async def save(self, chunks: Sequence[Chunk], changed: AbstractSet[int]) -> tuple[ChunkName, ...]:
        """Write those that have changed under new names; returns the names of all."""
        fresh = [chunk for chunk in chunks if chunk.number in changed or chunk.number not in self._names]
        named = {chunk.number: self._new_name(chunk.number) for chunk in fresh}
        if self._stored is not None:
            self._stored.update(one.name for one in named.values())
        await self._all([self._write(named[chunk.number].name, chunk) for chunk in fresh])
        self._names = {chunk.number: named.get(chunk.number) or self._names[chunk.number] for chunk in chunks}
        return tuple(self._names.values())

    async def drop_all_but(self, names: Sequence[ChunkName]) -> None:
        """Delete what the record that was just written does not name; what cannot be deleted now goes later."""
        with suppress(Unavailable):
            if self._stored is None:
                self._stored = {*await self._bucket.keys(self._role)}
            for name in self._stored - {one.name for one in names}:
                await self._bucket.delete(name)
                self._stored.discard(name)

    def _new_name(self, number: int) -> ChunkName:
        return ChunkName(number, f"{self._role}.{number}.{uuid.uuid4().hex[:12]}")

    async def _read(self, name: str) -> Chunk:
        try:
            entry = await self._bucket.get(name)
        except Unreadable as error:
            raise ChunksLost(f"trajectories of the rollout cannot be read: {name}: {error.reason}") from error
        if entry is None:
            raise ChunksLost(f"trajectories of the rollout are gone: {name}")
        return entry.value

    async def _write(self, name: str, chunk: Chunk) -> None:
        await self._bucket.put(name, chunk)

    @staticmethod
    async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run these together, a bounded number at a time."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(part: Coroutine[Any, Any, T]) -> T:
            async with slots:
                return await part

        return await asyncio.gather(*(one(part) for part in work))
