"""What every import has in common: how a format makes trajectories of its records, and what the file does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ratchet.contract import DEFAULT_ROLE, Trajectory


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the file does not say."""

    role: str = DEFAULT_ROLE
    model: str = "unknown"
    domain: str | None = None
    """By default read from the system prompt (`# Airline Agent Policy`), `none` where that does not say."""


class MalformedRecord(ValueError):
    """Why a record cannot become a trajectory."""


@dataclass(frozen=True, slots=True)
class Importer:
    """One format of logged trajectories: a JSON list, one JSON object, or JSON lines."""

    summary: str
    """What its files hold, for `ratchet import --help`."""
    trajectory_of: Callable[[object, ImportOptions], Trajectory]
    """The trajectory of one record, redacted: the same record must give the same message, byte for byte, so that
    importing twice changes nothing. Raises `MalformedRecord`, another `ValueError` or `Rejected` for a
    record that does not hold one: the import reports it and leaves it out."""
