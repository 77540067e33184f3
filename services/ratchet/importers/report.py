"""What an import did, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ratchet.messages import Message


class Sink(Protocol):
    """Where imported messages go: the kernel's bus."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """Store all of them. Raises `InvalidMessage`, `Rejected` or `BusUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that was left out, and why."""

    index: int
    """Its place among the records, from 0."""
    reason: str


@dataclass
class ImportReport:
    """The records of one import. What an earlier import published is published again, and stored once."""

    records: int = 0
    published: int = 0
    repeated: int = 0
    """Records that stand in the same file twice: published once."""
    malformed: list[Malformed] = field(default_factory=list[Malformed])
    redactions: Counter[str] = field(default_factory=Counter[str])
    """What was redacted in the published records, by kind."""
