"""The demo's way into the running stack: broker, warehouse, object store and the two control APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.state import JOBS, POLICIES, Job, PolicyVersion, Route
from ratchet.core.errors import NotFound
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.stack import Stack

REQUEST_S = 60.0
"""Longest wait for an answer of a control API: room for a busy machine."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Open connections to one stack."""

    shared: SharedSettings
    bus: Bus
    warehouse: Warehouse
    objects: Objects
    coordinator: AsyncApiClient
    deployer: AsyncApiClient
    gateway_url: str

    async def submit(self, body: Mapping[str, Any]) -> str:
        """Ask the coordinator for a job; returns its id. Raises `Rejected`."""
        return (await self.coordinator.ask("POST", "/v1/jobs", JobOut, body=body)).training_job_id

    async def job(self, job_id: str) -> Job | None:
        """A job as it is now."""
        entry = await Bucket(self.bus, JOBS, Job).get(job_id)
        return entry.value if entry else None

    async def route(self, role: str) -> Route | None:
        """Where a role's traffic goes."""
        entry = await Bucket(self.bus, POLICIES, Route).get(role)
        return entry.value if entry else None

    async def policies(self, role: str) -> Sequence[PolicyVersion]:
        """Every registered version of a role."""
        route, bucket = await self.route(role), Bucket(self.bus, POLICIES, PolicyVersion)
        numbers = range(route.next_version if route else 1)
        entries = [await bucket.get(f"{role}.{number}") for number in numbers]
        return [entry.value for entry in entries if entry is not None]

    async def rollout(self, role: str) -> RolloutOut | None:
        """The deployer's summary of the role's newest rollout; None when there was none."""
        try:
            return await self.deployer.ask("GET", f"/v1/rollouts/{role}", RolloutOut)
        except NotFound:
            return None

    async def start_rollout(self, role: str, version: int, *, actor: str, reason: str) -> None:
        """Start a rollout although a gate refused the version. Raises `Rejected`."""
        body = {"version": version, "actor": actor, "reason": reason, "override": True}
        await self.deployer.ask("POST", f"/v1/rollouts/{role}/start", RolloutOut, body=body)


@asynccontextmanager
async def connect(stack: Stack, shared: SharedSettings) -> AsyncIterator[Connections]:
    """Connect to a running stack; close everything at the end."""
    async with AsyncExitStack() as held:
        bus = await Bus.connect(shared.bus, name="demo", contracts=load_contracts())
        held.push_async_callback(bus.close)
        warehouse = await Warehouse.connect(shared)
        held.push_async_callback(warehouse.close)
        apis = [
            await held.enter_async_context(AsyncApiClient(Peer(f"the {name}", stack.url(name), timeout_s=REQUEST_S)))
            for name in ("coordinator", "deployer")
        ]
        yield Connections(shared, bus, warehouse, Objects(shared), apis[0], apis[1], stack.url("gateway"))
