"""The policies in memory by their immutable names, who uses them, and which leave when another one needs the room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

S = TypeVar("S")

KEPT = 2
"""So many policies stay, however large they are: stable and canary would else evict each other at every call."""


@dataclass(slots=True)
class Entry(Generic[S]):
    """A policy in memory. `served` is whatever answers for it."""

    name: str
    digest: str
    uri: str
    served: S
    loaded_at: float
    """Unix seconds."""
    used_at: float
    """Monotonic seconds."""
    own_bytes: int = 0
    """Of weights that it shares with no base model."""
    users: int = 0
    """Requests that it is answering."""


def to_evict(residents: Sequence[Entry[S]], capacity: int, surplus_bytes: int = 0) -> list[str] | None:
    """Names to unload so that one more policy fits into `capacity`, least recently used first.

    As many more leave as have `surplus_bytes`, or all that are not busy, but for bytes alone never so many that fewer
    than `KEPT` remain with the new one. None when too few may go to make room for one.
    """
    surplus = len(residents) + 1 - capacity
    movable = sorted((entry for entry in residents if not entry.users), key=lambda entry: entry.used_at)
    if surplus > len(movable):
        return None
    leaving: list[str] = []
    for entry in movable:
        enough_bytes = surplus_bytes <= 0 or len(residents) + 1 - len(leaving) <= KEPT
        if len(leaving) >= surplus and enough_bytes:
            break
        leaving.append(entry.name)
        surplus_bytes -= entry.own_bytes
    return leaving


@dataclass(slots=True)
class Registry(Generic[S]):
    """At most `capacity` policies, and `most_bytes` of their own weights.

    `KEPT` of them, and those that are busy, may have more.
    `forget` frees a policy that no request uses any more.
    """

    capacity: int
    forget: Callable[[S], None]
    most_bytes: int | None = None
    _entries: dict[str, Entry[S]] = field(default_factory=dict[str, Entry[S]], init=False)

    def __iter__(self) -> Iterator[Entry[S]]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry[S] | None:
        """The policy called `name`, if it is in memory."""
        return self._entries.get(name)

    def has_room(self) -> bool:
        """Whether one more policy fits, after evicting what may go."""
        return self._evictable() is not None

    def add(self, entry: Entry[S]) -> list[str]:
        """Keep `entry`, however large it is; returns the names of the policies that made room for it.

        Logs a warning where more bytes than `most_bytes` stay.
        """
        evicted = self._evictable(entry.own_bytes) or []
        for name in evicted:
            self.remove(name)
        self._entries[entry.name] = entry
        taken = sum(kept.own_bytes for kept in self._entries.values())
        if self.most_bytes is not None and taken > self.most_bytes:
            names = sorted(self._entries)
            log.warning(
                "policies exceed RATCHET_ENGINE_RESIDENT_BYTES", policies=names, taken=taken, most=self.most_bytes
            )
        return evicted

    def remove(self, name: str) -> bool:
        """No longer serve `name`; requests in progress are answered. False when it was not there."""
        entry = self._entries.pop(name, None)
        if entry is not None and not entry.users:
            self.forget(entry.served)
        return entry is not None

    @contextmanager
    def using(self, entry: Entry[S]) -> Iterator[S]:
        """Keep the policy while a request is answered."""
        entry.users += 1
        entry.used_at = time.monotonic()
        try:
            yield entry.served
        finally:
            entry.users -= 1
            if not entry.users and self._entries.get(entry.name) is not entry:
                self.forget(entry.served)

    def _evictable(self, new_bytes: int = 0) -> list[str] | None:
        residents = list(self._entries.values())
        taken = sum(entry.own_bytes for entry in residents) + new_bytes
        return to_evict(residents, self.capacity, 0 if self.most_bytes is None else taken - self.most_bytes)
