"""Which policies leave memory when another one needs the room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A policy in memory."""

    name: str
    used_at: float
    """Monotonic seconds of its last request (or its load)."""
    pinned: bool = False
    busy: bool = False
    """It is answering requests right now."""


def to_evict(residents: Sequence[Resident], capacity: int) -> list[str] | None:
    """Names to unload so that one more policy fits into `capacity`, least recently used first.

    None when too few of them may go: pinned and busy ones stay.
    """
    surplus = len(residents) + 1 - capacity
    movable = sorted((one for one in residents if not one.pinned and not one.busy), key=lambda one: one.used_at)
    if surplus > len(movable):
        return None
    return [one.name for one in movable[: max(0, surplus)]]
