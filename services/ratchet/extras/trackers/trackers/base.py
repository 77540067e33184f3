"""What a tracker of experiments takes: jobs as runs, and the policies of a role as versions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ratchet.bus.kv import Entry
from ratchet.core.contract.state import Job, PolicyVersion, Route


class Tracker(Protocol):
    """One tracker. Every call may come again, after a restart too, and then records nothing twice.

    Raises `Unavailable` while the tracker is away, and another `RatchetError` for what it refuses.
    """

    async def copy_job(self, job: Job) -> None:
        """Bring the tracker to where a job is."""
        ...

    async def copy_role(self, role: str, policies: Sequence[Entry[PolicyVersion]], route: Entry[Route] | None) -> None:
        """Bring its registry of models, if it has one, to where a role's policies are."""
        ...
