"""Several gateways in this process, in front of one fake engine and on one real broker, without a balancer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway import peer_sync
from ratchet.gateway.app import build
from ratchet.gateway.peer_sync import PeerSync
from ratchet.gateway.settings import Settings
from tests.support.fake_engine import FakeEngine, serving
from tests.support.gateway_alone import InThisProcess
from tests.support.gateway_scene import ROLE, Scene, ask, put_routes, version
from tests.support.running import connected, running_app
from tests.support.servers import Broker


@dataclass
class Several:
    """The gateways; each call goes to one that is drawn, unless a test names it."""

    scenes: list[Scene]
    engine: FakeEngine
    bus: Bus
    chance: random.Random
    stack: AsyncExitStack
    settings: Settings

    async def ask(self, messages: Sequence[Any], at: int | None = None, **options: Any) -> Any:
        """A call at gateway `at`."""
        scene = self.chance.choice(self.scenes) if at is None else self.scenes[at]
        return await ask(scene.client(), list(messages), **options)

    async def join(self) -> Scene:
        """One more gateway, once it serves the role; its data are its own."""
        folder = self.settings.shared.data_dir / str(len(self.scenes))
        shared = self.settings.shared.model_copy(update={"data_dir": folder})
        settings = self.settings.model_copy(update={"shared": shared})
        app = await self.stack.enter_async_context(running_app(build(settings, recorders=InThisProcess())))
        port: int = app.components[-1].port  # type: ignore[attr-defined]
        scene = Scene(f"http://127.0.0.1:{port}", self.engine, self.bus, app)
        await eventually(lambda: serves(scene))
        self.scenes.append(scene)
        return scene

    async def meet(self) -> None:
        """Wait until every gateway knows that there are others, and all that they have answered."""

        async def have_met() -> bool:
            syncs = [peer_sync_of(scene) for scene in self.scenes]
            return all([sync.has_others and await sync.catch_up() for sync in syncs])

        await eventually(have_met)


def peer_sync_of(scene: Scene) -> PeerSync:
    (peer_sync,) = (part for part in scene.app.components if isinstance(part, PeerSync))
    return peer_sync


async def serves(scene: Scene) -> bool:
    return f"{ROLE}@1" in [model.id async for model in scene.client().models.list()]


@asynccontextmanager
async def several(nats: Broker, folder: Path, number: int, **options: Any) -> AsyncIterator[Several]:
    """So many gateways that know of each other; on a busy machine a broker that answers late is not away."""
    shared = SharedSettings(nats_url=nats.url, data_dir=folder)
    engine = FakeEngine(resident={version(1).name})
    async with connected(shared) as bus, serving(engine) as engine_url, AsyncExitStack() as stack:
        stack.enter_context(patch.object(peer_sync, "ROUND_TRIP_S", 10.0))
        await put_routes(bus, **{ROLE: 1})
        settings = Settings(shared=shared, port=0, **{"engine_url": engine_url, "grace_s": 0.0, **options})
        here = Several([], engine, bus, random.Random(7), stack, settings)
        for _ in range(number):
            await here.join()
        await here.meet()
        try:
            yield here
        finally:
            await asyncio.gather(*(client.close() for scene in here.scenes for client in scene.clients))
