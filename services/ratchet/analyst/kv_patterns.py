"""Patterns and how far the analyst has looked, in bucket `patterns`.

<role>.<pattern_id>     a pattern
analyst.looked.<role>   how far the role was looked at
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from ratchet.analyst.domain.looking import Looked
from ratchet.analyst.domain.patterns import OPEN
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode
from ratchet.core.contract.learning import PATTERNS, Pattern
from ratchet.core.errors import Unreadable

log = structlog.get_logger()

LOOKED = "analyst.looked"


class PatternStore:
    """Raises what `Bucket` does."""

    def __init__(self, bus: Bus) -> None:
        self._patterns = Bucket(bus, PATTERNS, Pattern)
        self._looked = Bucket(bus, PATTERNS, Looked)
        self._raw = Bucket(bus, PATTERNS, msgspec.Raw)

    async def every(self, select: Callable[[str], bool] = lambda _: True) -> list[Entry[Pattern]]:
        """Patterns of the roles that are selected, by key. One that cannot be read is left out, and logged."""
        entries = await self._raw.items(lambda key: _is_pattern(key) and select(key.partition(".")[0]))
        readable: list[Entry[Pattern]] = []
        for key, entry in entries.items():
            try:
                pattern = decode(bytes(entry.value), Pattern)
                readable.append(_own(key, Entry(pattern, entry.revision)))
            except (msgspec.DecodeError, Unreadable) as error:
                log.error("a pattern cannot be read", pattern=key, reason=str(error))
        return readable

    async def open_of(self, role: str) -> list[Pattern]:
        """The open ones of a role."""
        entries = await self.every(lambda name: name == role)
        return [entry.value for entry in entries if entry.value.state == OPEN]

    async def get(self, role: str, pattern_id: str) -> Entry[Pattern] | None:
        """A pattern as it stands."""
        key = f"{role}.{pattern_id}"
        entry = await self._patterns.get(key)
        return _own(key, entry) if entry is not None else None

    async def put(self, pattern: Pattern, revision: int | None) -> int:
        """Write a pattern unless it has changed since `revision`; None: there is none yet. Raises `Conflict`."""
        key = f"{pattern.role}.{pattern.pattern_id}"
        if revision is None:
            return await self._patterns.create(key, pattern)
        return await self._patterns.update(key, pattern, revision)

    async def remove(self, pattern: Pattern, revision: int) -> None:
        """Remove it unless it has changed since `revision`. Raises `Conflict`."""
        await self._patterns.delete(f"{pattern.role}.{pattern.pattern_id}", revision)

    async def looked(self, role: str) -> Entry[Looked] | None:
        """How far a role was looked at."""
        return await self._looked.get(f"{LOOKED}.{role}")

    async def keep_looked(self, role: str, looked: Looked, revision: int | None) -> int:
        """Write how far, unless it has changed since `revision`; None: it was not looked at yet. Raises `Conflict`."""
        key = f"{LOOKED}.{role}"
        if revision is None:
            return await self._looked.create(key, looked)
        return await self._looked.update(key, looked, revision)


def _is_pattern(key: str) -> bool:
    return key.count(".") == 1


def _own(key: str, entry: Entry[Pattern]) -> Entry[Pattern]:
    """What stands under the key of its role: keys tell who may see it. Raises `Unreadable`."""
    if key != f"{entry.value.role}.{entry.value.pattern_id}":
        raise Unreadable(key, entry.revision, "it is a pattern of another key")
    return entry
