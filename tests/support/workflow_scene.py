"""A workflow service in this process, behind a real gateway with a scripted upstream and on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract.http.workflows import WorkflowOut
from ratchet.core.contract.workflows import Worker, WorkerLimits
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.settings import UpstreamSettings
from ratchet.workflows.app import build
from ratchet.workflows.runners import TIMING, Timing
from ratchet.workflows.settings import Settings
from tests.support.fake_engine import FakeProvider, providing
from tests.support.gateway_scene import Scene, scene
from tests.support.running import http_client, running_app
from tests.support.servers import Broker

KEY_VARIABLE = "RATCHET_TEST_PROVIDER_KEY"
WRITER_ROLE = "writer"
ENDED = ("succeeded", "partial", "failed", "cancelled")


@dataclass
class WorkflowScene:
    """A running gateway, its upstream, and what starts workflow services behind it."""

    gateway: Scene
    provider: FakeProvider
    shared: SharedSettings
    clients: list[httpx.AsyncClient] = field(default_factory=list[httpx.AsyncClient])

    @asynccontextmanager
    async def service(self, timing: Timing = TIMING, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A workflow service while the block runs, and a client of it."""
        given = Settings(shared=self.shared, port=0, gateway_url=self.gateway.url, **settings)
        async with running_app(build(given, timing)) as app:
            server = next(each for each in app.components if isinstance(each, HttpServer))
            async with http_client(base_url=f"http://127.0.0.1:{server.port}") as client:
                yield client


def worker(name: str, *capabilities: str, **members: Any) -> Worker:
    """A worker that the upstream's model stands behind."""
    given: dict[str, Any] = {"model": WRITER_ROLE, "cost_per_token": 1e-6, **members}
    limits = given.pop("limits", WorkerLimits(max_output_tokens=100))
    return Worker(name=name, model_type="llm", capabilities=capabilities or ("generation",), limits=limits, **given)


async def put_worker(client: httpx.AsyncClient, added: Worker) -> None:
    answer = await client.post("/v1/workers", content=msgspec.json.encode(added), headers=JSON)
    assert answer.status_code == 200, answer.text


JSON = {"content-type": "application/json"}


async def begun(client: httpx.AsyncClient, instruction: str = "Write a poem.", **members: Any) -> WorkflowOut:
    """A workflow that was asked for."""
    answer = await client.post("/v1/workflows", json={"instruction": instruction, **members})
    assert answer.status_code == 202, answer.text
    return msgspec.json.decode(answer.content, type=WorkflowOut)


async def seen(client: httpx.AsyncClient, workflow_id: str) -> WorkflowOut:
    answer = await client.get(f"/v1/workflows/{workflow_id}")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=WorkflowOut)


async def over(client: httpx.AsyncClient, workflow_id: str) -> WorkflowOut:
    """The workflow, once it has ended."""

    async def probe() -> WorkflowOut | None:
        now = await seen(client, workflow_id)
        return now if now.state in ENDED else None

    return await eventually(probe)


@asynccontextmanager
async def workflow_scene(
    nats: Broker,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer_to: Callable[[dict[str, Any]], str] | None = None,
    shared: SharedSettings | None = None,
    **options: Any,
) -> AsyncIterator[WorkflowScene]:
    """`shared`: of the service; `options`: of the gateway."""
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    provider = FakeProvider("provider-key", answer_to=answer_to)
    async with providing(provider) as url:
        models = {WRITER_ROLE: "big-model", "planner": "big-model"}
        upstream = UpstreamSettings(name="provider", base_url=url, api_key_env=KEY_VARIABLE, models=models)
        async with scene(nats, folder, upstreams=[upstream], **options) as gateway:
            given = shared or SharedSettings(nats_url=nats.url, data_dir=folder / "workflows")
            yield WorkflowScene(gateway, provider, given)
