"""Brings a tracker to where jobs and policies are. Every step can be done again: nothing is recorded twice."""

from __future__ import annotations

import structlog

from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import Job, PolicyVersion, Route
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.extras.trackers.trackers.base import Tracker

log = structlog.get_logger()


class Copier:
    """Looks at what has changed since its last look; after a start that is everything."""

    def __init__(
        self, jobs: Bucket[Job], policies: Bucket[PolicyVersion], routes: Bucket[Route], tracker: Tracker
    ) -> None:
        self._jobs = jobs
        self._policies = policies
        self._routes = routes
        self._tracker = tracker
        self._copied: dict[str, int] = {}
        """Revisions of the jobs that the tracker has."""

    async def copy(self) -> None:
        """Copy what has changed. One job or role that the tracker refuses does not keep it from the others."""
        for name, entry in (await self._jobs.items()).items():
            if self._copied.get(name) != entry.revision:
                try:
                    await self._tracker.copy_job(entry.value)
                except Unavailable:
                    raise
                except RatchetError as error:
                    log.warning("a job is not copied to the tracker", job=name, reason=str(error))
                self._copied[name] = entry.revision
        routes = await self._routes.items(lambda key: "." not in key)
        policies = await self._policies.items(lambda key: "." in key)
        for role in sorted({entry.value.role for entry in policies.values()}):
            own = [entry for entry in policies.values() if entry.value.role == role]
            try:
                await self._tracker.copy_role(role, own, routes.get(role))
            except Unavailable:
                raise
            except RatchetError as error:
                log.warning("a role's policies are not copied to the tracker", role=role, reason=str(error))
