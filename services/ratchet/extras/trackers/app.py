"""Composition root of the experiment tracker.

Buckets `jobs`, `policies` ── Copier, every few seconds ── trackers.TRACKERS ─┬─ mlflow ── REST ── an MLflow server
                                       S3: curves, cards ──┘                  └─ trackio, wandb ── their interpreters
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import App, Component, Periodic
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers import TRACKERS
from ratchet.extras.trackers.trackers.base import Tracker

log = structlog.get_logger()

NAME = "experiment_tracker"
INTERVAL_S = 10.0
"""Time between looks at what has changed."""


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


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and assemble. Without a tracker to copy to the service idles."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
        bus.bodies = StoredBodies(settings.shared)
        stack.push_async_callback(bus.close)
        objects, components = Objects(settings.shared), list[Component]()
        jobs, routes = Bucket(bus, JOBS, Job), Bucket(bus, POLICIES, Route)
        policies = Bucket(bus, POLICIES, PolicyVersion)
        for name, make in TRACKERS.items():
            tracker = await make(settings, objects, stack)
            if tracker is not None:  # one that is away is tried again at the next look; nothing waits for it
                copier = Copier(jobs, policies, routes, tracker)
                components.append(Periodic(INTERVAL_S, copier.copy, f"copy_{name}"))
        yield App(NAME, components, {"broker": bus.check})
