"""Which sets of tools were searched, and what was left of those that something was taken out of: bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.rules.redaction import Redacted

SET_BYTES = 1024
"""What one costs beside its text, measured and rounded up."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """A set that was searched. Nothing is kept of one that nothing was taken out of: the caller has it at hand."""

    counts: dict[str, int]
    left: bytes

    @property
    def size(self) -> int:
        return SET_BYTES + len(self.left)


class ToolSets:
    """The most recently used sets, by digest, in at most `limit_bytes`; one that is larger is not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._searched: OrderedDict[str, _Searched] = OrderedDict()
        self.size = 0
        """Bytes of all that are kept."""

    def get(self, digest: str, tools: list[JsonObject]) -> Redacted | None:
        """What a search of `tools` gave, None when it is not known."""
        searched = self._searched.get(digest)
        if searched is None:
            return None
        self._searched.move_to_end(digest)
        return Redacted(msgspec.json.decode(searched.left), searched.counts) if searched.counts else Redacted(tools)

    def put(self, digest: str, redacted: Redacted) -> None:
        """Keep what a search gave; the least recently used sets make room, but not for one that cannot stay."""
        # A copy: what the encoder returns holds on to a buffer of up to twice the length.
        left = bytes(memoryview(msgspec.json.encode(redacted.value))) if redacted.counts else b""
        searched = _Searched(redacted.counts, left)
        if searched.size > self._limit:
            return
        known = self._searched.pop(digest, None)
        self.size += searched.size - (known.size if known else 0)
        self._searched[digest] = searched
        while self.size > self._limit:
            _, dropped = self._searched.popitem(last=False)
            self.size -= dropped.size

    def __len__(self) -> int:
        return len(self._searched)
