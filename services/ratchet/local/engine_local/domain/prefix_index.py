"""Which stored token sequence shares the longest prefix with a prompt, so that the prefix is not computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

BLOCK = 16
"""Sequences are found by the hashes of their prefixes at multiples of this many tokens."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True, eq=False)
class Stored(Generic[P]):
    """A sequence and whatever belongs to it (keys and values per layer)."""

    ids: Sequence[int]
    payload: P


@dataclass(frozen=True, slots=True)
class Match(Generic[P]):
    """`stored.ids[:length]` is a prefix of the prompt."""

    stored: Stored[P]
    length: int


class PrefixIndex(Generic[P]):
    """Sequences of at most `capacity` tokens in all; the least recently used one goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens = 0
        self._stored: OrderedDict[int, Stored[P]] = OrderedDict()
        self._owners: dict[int, int] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all stored sequences together."""
        return self._tokens

    def longest_prefix(self, ids: Sequence[int]) -> Match[P] | None:
        """The longest known prefix of `ids`, at least one token shorter than `ids`; None below one block."""
        prompt = ids[:-1]
        for key in reversed(list(_prefix_hashes(prompt))):
            stored = self._stored.get(self._owners.get(key, 0))
            if stored is None:
                continue
            length = min(len(stored.ids), len(prompt))
            if stored.ids[:length] != prompt[:length]:
                length = next(n for n in range(length) if stored.ids[n] != prompt[n])
            if length >= BLOCK:
                self._stored.move_to_end(id(stored))
                return Match(stored, length)
        return None

    def add(self, ids: Sequence[int], payload: P, extends: Match[P] | None = None) -> None:
        """Keep `ids`. The sequence it fully `extends` is dropped: the longer one serves the same prompts."""
        if len(ids) < BLOCK or len(ids) > self._capacity:
            return
        if extends is not None and extends.length == len(extends.stored.ids):
            self._drop(id(extends.stored))
        stored = Stored(ids, payload)
        self._stored[id(stored)] = stored
        self._tokens += len(ids)
        self._owners.update(dict.fromkeys(_prefix_hashes(ids), id(stored)))
        while self._tokens > self._capacity:
            self._drop(next(iter(self._stored)))

    def _drop(self, key: int) -> None:
        stored = self._stored.pop(key, None)
        if stored is None:
            return
        self._tokens -= len(stored.ids)
        for prefix in _prefix_hashes(stored.ids):
            if self._owners.get(prefix) == key:
                del self._owners[prefix]


def _prefix_hashes(ids: Sequence[int]) -> Iterator[int]:
    """A chained hash of the ids up to each multiple of `BLOCK`."""
    chained = 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        chained = hash((chained, *ids[start : start + BLOCK]))
        yield chained
