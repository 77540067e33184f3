"""Composition root of the experiment tracker.

Buckets `jobs`, `policies` ── Copier, every few seconds ── trackers.TRACKERS ─┬─ mlflow ── REST ── an MLflow server
                                       S3: curves, cards ──┘                  └─ trackio, wandb ── their interpreters
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import App, Component, Periodic
from ratchet.core.stores.objects import Objects
from ratchet.extras.trackers.copier import Copier
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers import TRACKERS

NAME = "experiment_tracker"
INTERVAL_S = 10.0
"""Time between looks at what has changed."""


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and assemble. Without a tracker to copy to the service idles."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
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
