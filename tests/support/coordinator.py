"""A running coordinator, stored facts for it to work with, and a listener in the place of its workers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow.parquet as pq

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Done
from ratchet.bus.message import Cause, named_id
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import JOBS
from ratchet.core.contract.training import StatusMetadata
from ratchet.core.contract.trajectory import PolicyClaim, TaskContext
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.app import build
from ratchet.rl_coordinator.settings import Settings, Timing
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.consuming import consuming
from tests.support.running import running, running_app
from tests.support.stored_values import check_buckets, check_objects
from tests.support.training import after, conversation, reward, trajectory

ROLE = "support"


@dataclass
class Workshop:
    """A running coordinator, and what surrounds it."""

    bus: Bus
    api: httpx.AsyncClient
    objects: Objects
    dispatches: list[TrainingDispatch]
    causes: dict[str, Cause]
    """By the dispatch's event id: the cause that a worker's status about it names."""

    async def ask(self, **body: Any) -> dict[str, Any]:
        answer = await self.api.post(
            "/v1/jobs", json={"algorithm": "rloo", "base_model": "org/model", "role": ROLE, **body}
        )
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def job(self, job_id: str) -> dict[str, Any]:
        return (await self.api.get(f"/v1/jobs/{job_id}")).json()

    async def until(self, job_id: str, state: str) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            job = await self.job(job_id)
            return job if job.get("state") == state else None

        return await eventually(reached)

    async def dispatched(self, job_id: str, attempt: int = 1) -> TrainingDispatch:
        async def there() -> TrainingDispatch | None:
            matching = [d for d in self.dispatches if (d.training_job_id, d.attempt) == (job_id, attempt)]
            return matching[0] if matching else None

        return await eventually(there)

    async def report(self, dispatch: TrainingDispatch, status: str, **changes: Any) -> None:
        """Publish a status as the worker of a dispatch."""
        values = {
            "training_job_id": dispatch.training_job_id,
            "timestamp": self.bus.now(),
            "status": status,
            "role": dispatch.request.role,
            "attempt": dispatch.attempt,
            "metadata": StatusMetadata(worker="w1"),
        }
        cause = Cause(event_id=dispatch.event_id, correlation_id=dispatch.request.event_id)
        await self.bus.publish(TrainingStatus(**{**values, **changes}), cause=self.causes.get(dispatch.event_id, cause))

    def rows(self, uri: str, digest: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Manifest and rows of a snapshot, verified."""
        manifest = json.loads(self.objects.get(uri, digest))
        file = manifest["parquet"]
        return manifest, pq.read_table(io.BytesIO(self.objects.get(file["uri"], file["sha256"]))).to_pylist()


QUICK = Timing(tick_s=0.05, trigger_tick_s=0.05)


@asynccontextmanager
async def coordinating(
    shared: SharedSettings, bus: Bus, timing: Timing = QUICK, **chosen: Any
) -> AsyncIterator[Workshop]:
    """Run the coordinator and a listener that takes its dispatches; at the end, check what they stored."""
    dispatches: list[TrainingDispatch] = []
    causes: dict[str, Cause] = {}

    async def take(batch: Sequence[Received[TrainingDispatch]]) -> list[Done]:
        dispatches.extend(received.message for received in batch)
        causes.update({received.event_id: received.as_cause() for received in batch})
        return [Done() for _ in batch]

    few = {"minimum_rows": 1, "minimum_pairs": 0, "human_share": 0.0}
    settings = Settings(shared=shared, port=0, **(few | chosen))
    async with (
        running_app(build(settings, timing)) as app,
        running(consuming(bus, {TrainingDispatch: take}, "workers")),
    ):
        server = next(part for part in app.components if isinstance(part, HttpServer))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as api:
            yield Workshop(bus, api, Objects(shared), dispatches, causes)
    await check_buckets(bus, JOBS, "coordinator")
    await asyncio.to_thread(check_objects, Objects(shared), "snapshots")


@asynccontextmanager
async def stored(shared: SharedSettings, bus: Bus, facts: Sequence[Message]) -> AsyncIterator[None]:
    """Publish facts and wait until the collector has stored them all."""
    async with running_app(build_collector(CollectorSettings(shared=shared, linger_s=0.01))):
        await bus.publish_all(facts)
        warehouse = await Warehouse.connect(shared)  # its tables are there, as the collector needs them

        async def all_there() -> bool:
            counts = await warehouse.rows(
                "SELECT (SELECT uniqExact(event_id) FROM trajectories) + (SELECT uniqExact(event_id) FROM turns)"
                " + (SELECT uniqExact(event_id) FROM rewards) + (SELECT uniqExact(event_id) FROM feedback)"
                " + (SELECT uniqExact(event_id) FROM preferences)"
                " + (SELECT uniqExact(event_id) FROM workflow_executions) AS n"
            )
            return counts[0]["n"] == len({fact.event_id for fact in facts})

        try:
            await eventually(all_there)
        finally:
            await warehouse.close()
        yield


def tid(name: str) -> str:
    return named_id("trajectory", name)


def played(
    name: str, total: float, *, seconds: float = 0, task: str = "task", calls: int = 2, **claim: Any
) -> list[Message]:
    """A finished trajectory with its turns and its reward."""
    arm = {"role": ROLE, "version": 1, "digest": "d" * 64, "arm": "stable", "weight": 0.0, **claim}
    turns, _ = conversation(tid(name), [3, 3], policy=PolicyClaim(**arm))
    ended = trajectory(
        tid(name),
        turns=turns,
        success=total > 0.5,
        at=after(seconds),
        task_context=TaskContext(task_id=task, instructions="Help."),
    )
    return [*turns, ended, reward(ended, total, at=after(seconds))]
