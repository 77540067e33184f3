"""Values that were used lately, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The most recently used values, in at most `limit_bytes`; the newest one stays whatever its size."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.size = 0
        """Bytes of all values."""
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get_value(self, key: K) -> V | None:
        """The value, which is now the most recently used one; None when it is not remembered."""
        entry = self._values.get(key)
        if entry is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    def put_value(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes in the place of an earlier one; the least recently used ones make room."""
        earlier = self._values.pop(key, None)
        self._values[key] = (value, size)
        self.size += size - (earlier[1] if earlier else 0)
        while self.size > self.limit and len(self._values) > 1:
            _, (_, freed) = self._values.popitem(last=False)
            self.size -= freed

    def take_value(self, key: K) -> V | None:
        """The value, which is forgotten; None when it is not remembered."""
        entry = self._values.pop(key, None)
        if entry is None:
            return None
        self.size -= entry[1]
        return entry[0]

    def __len__(self) -> int:
        return len(self._values)
