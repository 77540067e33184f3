"""Composition root of the experiment tracker.

Buckets `jobs`, `policies` ── Copier, every few seconds ── Mlflow ── REST ── an MLflow server
          S3: curves, cards ──┘
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ratchet.bus.connection import Bus
from ratchet.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.experiment_tracker.copier import Copier
from ratchet.experiment_tracker.mlflow_rest import Mlflow
from ratchet.experiment_tracker.settings import Settings
from ratchet.service.contracts import load_contracts
from ratchet.service.http_client import AsyncApiClient, Peer, bearer
from ratchet.service.runtime import App, Component, Periodic
from ratchet.stores.objects import Objects

NAME = "experiment_tracker"


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and assemble. Without a server to copy to the service idles."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
        stack.push_async_callback(bus.close)
        components: list[Component] = []
        if settings.mlflow_url is not None:
            peer = Peer("the MLflow server", settings.mlflow_url, bearer(settings.mlflow_token))
            mlflow = Mlflow(await stack.enter_async_context(AsyncApiClient(peer)))
            components.append(copying(settings, bus, Objects(settings.shared), mlflow))
        yield App(NAME, components, {"broker": bus.check})


def copying(settings: Settings, bus: Bus, objects: Objects, mlflow: Mlflow) -> Periodic:
    """The component that copies. A tracker that is away is tried again at the next look; nothing waits for it."""
    jobs, policies = bus.bucket(JOBS, Job), bus.bucket(POLICIES, PolicyVersion)
    copier = Copier(jobs, policies, bus.bucket(POLICIES, Route), objects, settings.prefix)
    return Periodic(settings.interval_s, lambda: copier.copy(mlflow), "copy")
