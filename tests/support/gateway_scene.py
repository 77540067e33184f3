"""A gateway in this process, in front of a fake engine and on a real broker, for tests with the public clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import openai

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message, named_id
from ratchet.core.contract.state import CanaryRoute, PolicyVersion, Route, ServedPolicy, WeightStep
from ratchet.core.rules.arms import policy_name
from ratchet.core.service.engine_list import EngineSettings
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build
from ratchet.gateway.settings import Constants, Settings
from tests.support.consuming import messages_of
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_alone import InThisProcess
from tests.support.messages import AT
from tests.support.running import connected, running_app
from tests.support.servers import Broker

ROLE = "support"


@dataclass
class Scene:
    """A running gateway, its engine, and a bus to read what it publishes."""

    url: str
    engine: FakeEngine
    bus: Bus
    app: App
    clients: list[openai.AsyncOpenAI] = field(default_factory=list[openai.AsyncOpenAI])

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        base_url = options.pop("base_url", f"{self.url}/v1")
        client = openai.AsyncOpenAI(base_url=base_url, **{"api_key": "none-0123456789a", "max_retries": 0, **options})
        self.clients.append(client)
        return client

    async def published(self, kind: type[Message], number: int) -> list[Any]:
        """The messages of a kind, once there are at least `number`."""

        async def probe() -> list[Any]:
            messages = await messages_of(self.bus, kind)
            return messages if len(messages) >= number else []

        return await eventually(probe)


def version(number: int, role: str = ROLE, digest: str | None = None) -> PolicyVersion:
    digest = digest or str(number) * 64
    return PolicyVersion(
        role=role,
        version=number,
        name=policy_name(role, number, digest),
        digest=digest,
        uri=f"s3://ratchet/policies/{digest}.json",
        kind="adapter",
        base_model="tiny",
        created_at=AT,
        stage="stable",
    )


def served(number: int, role: str = ROLE, digest: str | None = None) -> ServedPolicy:
    made = version(number, role, digest)
    return ServedPolicy(version=number, name=made.name, digest=made.digest)


def canary_route(*, weight: float = 1.0, lease: int = 1) -> CanaryRoute:
    """Version 2 under test, from long ago on."""
    steps = [WeightStep(at=AT, weight=weight)]
    return CanaryRoute(rollout_id=named_id("rollout"), policy=served(2), salt="salt", schedule=steps, lease=lease)


@asynccontextmanager
async def scene(
    nats: Broker, folder: Path, digest: str | None = None, *, engines: Sequence[Any] = (), **options: Any
) -> AsyncIterator[Scene]:
    """`digest`: of the stable policy, where the engine is a real one; `engines`: entries of `RATCHET_ENGINES`, in the
    place of the scene's own engine; `options`: further settings and constants. Without `recorders` this process
    records."""
    shared = SharedSettings(
        nats_url=nats.url, data_dir=folder, engines=tuple(map(EngineSettings.model_validate, engines))
    )
    engine = FakeEngine(resident={version(1).name})
    async with connected(shared) as bus, serving(engine) as engine_url:
        for made in (version(1, digest=digest), version(2)):
            await Bucket(bus, "policies", PolicyVersion).put(f"{ROLE}.{made.version}", made)
        stable = served(1, digest=digest)
        await Bucket(bus, "policies", Route).put(ROLE, Route(role=ROLE, stable=stable, next_version=3))
        constants = {field.name: options.pop(field.name) for field in fields(Constants) if field.name in options}
        settings = Settings(shared=shared, port=0, **{"engine_url": engine_url, "grace_s": 0.0, **options})
        recorders = None if "recorders" in options else InThisProcess()
        async with running_app(build(settings, recorders, Constants(**constants))) as app:
            port: int = app.components[-1].port  # type: ignore[attr-defined]
            here = Scene(f"http://127.0.0.1:{port}", engine, bus, app)
            await eventually(lambda: _looked(here, options))
            try:
                yield here
            finally:
                await asyncio.gather(*(client.close() for client in here.clients))


async def put_routes(bus: Bus, **stable: int) -> None:
    """Each role's stable version, registered and routed."""
    for role, number in stable.items():
        await Bucket(bus, "policies", PolicyVersion).put(f"{role}.{number}", version(number, role))
        route = Route(role=role, stable=served(number, role), next_version=number + 1)
        await Bucket(bus, "policies", Route).put(role, route)


async def _looked(here: Scene, options: dict[str, Any]) -> bool:
    """Whether the gateway has seen the route without a canary: one that begins later is served at once."""
    keys = options.get("api_keys") or ["none"]
    return f"{ROLE}@1" in [model.id async for model in here.client(api_key=str(keys[0])).models.list()]


async def ask(client: openai.AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    return await client.chat.completions.with_raw_response.create(
        model=options.pop("model", ROLE), messages=messages, **options
    )
