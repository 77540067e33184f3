"""What an import did, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ratchet.contract import Message


class Sink(Protocol):
    """Where imported messages go: a bus."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """Store all of them. Raises `InvalidMessage`, `Rejected` or `BusUnavailable`."""
        ...


class Stored(Protocol):
    """What is already there: the warehouse."""

    async def roles(self, trajectory_ids: Sequence[str]) -> Mapping[str, str]:
        """The role of each of these trajectories that is stored."""
        ...


class NothingStored:
    """Stands in for the warehouse where nobody can look."""

    async def roles(self, trajectory_ids: Sequence[str]) -> Mapping[str, str]:
        del trajectory_ids
        return {}


Told = Callable[[int, int], None]
"""Told how many records are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that was left out, and why."""

    index: int
    """Its place among the records, from 0."""
    reason: str


@dataclass
class ImportReport:
    """What became of the records of one import."""

    records: int = 0
    published: int = 0
    repeated: int = 0
    """Records that stand in the same file twice: published once."""
    present: int = 0
    """Records that an earlier import has stored: left alone."""
    elsewhere: Counter[str] = field(default_factory=Counter[str])
    """Records that are stored under another role, by that role: a trajectory has one role, so they are left alone."""
    malformed: list[Malformed] = field(default_factory=list[Malformed])
    redactions: Counter[str] = field(default_factory=Counter[str])
    """What was redacted in the published records, by kind."""
