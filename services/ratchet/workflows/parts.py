"""What running a workflow takes: interfaces to the gateway, the registry and the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import uuid_utils

from ratchet.core.contract import Message
from ratchet.core.contract.http.gateway import FetchedBundle
from ratchet.core.contract.workflows import Worker
from ratchet.workflows.domain.asking import Answer, Asked
from ratchet.workflows.domain.choosing import Known
from ratchet.workflows.domain.workflow import Workflow
from ratchet.workflows.kv_workflows import WorkflowStore
from ratchet.workflows.planners import Planners


class Gateway(Protocol):
    """See `http_gateway.HttpGateway`."""

    async def fetch(
        self, policy: str, workflow_id: str, *, user: str | None, session: str | None
    ) -> tuple[FetchedBundle, bool]: ...

    async def ask(self, worker: Worker, asked: Asked) -> Answer: ...

    async def end(self, trajectory_id: str, workflow: Workflow, *, success: bool) -> None: ...


class Registry(Protocol):
    """See `kv_workers.WorkerStore`."""

    async def every(self) -> Sequence[Known]: ...

    async def note(self, name: str, *, success: bool, latency_ms: float, cost_usd: float) -> None: ...


class Slots:
    """Of each worker as many calls under way as its limits allow."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, asyncio.Semaphore]] = {}

    def of(self, worker: Worker) -> asyncio.Semaphore:
        """A slot of the worker; a changed limit counts from the next call on."""
        limit = worker.limits.at_once
        known = self._known.get(worker.name)
        if known is None or known[0] != limit:
            known = self._known[worker.name] = (limit, asyncio.Semaphore(limit))
        return known[1]


def new_id() -> str:
    """An id of a child trajectory."""
    return str(uuid_utils.uuid7())


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What all workflows of a process share."""

    store: WorkflowStore
    registry: Registry
    gateway: Gateway
    ask_tool: Callable[[Worker, Asked], Awaitable[Answer]]
    planners: Planners
    publish: Callable[[Sequence[Message]], Awaitable[None]]
    """Redacts and publishes, unless a person whom they are about has opted out."""
    now: Callable[[], datetime]
    planning_model: str = ""
    """Name of the worker that plans where a planner is not confident."""
    monotonic: Callable[[], float] = time.monotonic
    pause_s: float = 1.0
    """Before the first retry of a call; doubles."""
    slots: Slots = field(default_factory=Slots)

    async def ask(self, worker: Worker, asked: Asked) -> Answer:
        """Have a worker answer. Raises `CallFailed`."""
        if worker.url is not None:
            return await self.ask_tool(worker, asked)
        return await self.gateway.ask(worker, asked)
