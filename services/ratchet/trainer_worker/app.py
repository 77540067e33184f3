"""Composition root of the trainer worker.

RL_JOBS, own pool ── Consumer ── handlers.Dispatches ── Slots ── Attempt ── Child (a process: child.py)
                                       WarmLink ── forked from the warm parent ─┘
                                                                   ├── heartbeat: training.status
                                                                   ├── watch: `jobs` bucket
                                                                   └── S3: snapshot, base, checkpoints, policy
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Handlers
from ratchet.contract import TrainingDispatch
from ratchet.contract.state import JOBS, Job
from ratchet.errors import MissingExtra
from ratchet.service.contracts import load_contracts
from ratchet.service.runtime import App, Component
from ratchet.stores.objects import Objects
from ratchet.trainer_worker.attempt import Attempt, Tools
from ratchet.trainer_worker.handlers import Dispatches, Slots
from ratchet.trainer_worker.settings import Settings
from ratchet.trainer_worker.warm_link import WarmLink
from ratchet.trainer_worker.work_directory import own_directory

NAME = "trainer_worker"
REQUIRED = ("torch", "transformers", "peft", "accelerate", "datasets", "trl")
"""Modules of the extra `trainer`, which only the child process imports."""


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble the worker. Without the extra it takes no jobs and says so in its readiness."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    try:
        with own_directory(settings.work):
            yield assembled(settings, bus, Objects(settings.shared))
    finally:
        await bus.close()


def assembled(settings: Settings, bus: Bus, objects: Objects) -> App:
    """The worker on connections that are open."""
    jobs = bus.bucket(JOBS, Job)
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    warm = WarmLink(settings.work, settings.warm_delay_s) if settings.warm and not missing else None
    tools = Tools(bus.publish, jobs, objects, settings, bus.now, warm)
    slots = Slots(settings.slots, lambda received: Attempt(received, tools))
    components: list[Component] = [slots] if warm is None else [warm, slots]
    if not missing:
        handlers: Handlers = {TrainingDispatch: Dispatches(slots, jobs, settings.worker).on_dispatches}
        components.append(bus.subscribe("trainer-<pool>", handlers, parameters={"pool": settings.pool}))

    async def extra() -> str | None:
        return f"{MissingExtra('trainer', 'training')} (missing: {', '.join(missing)})" if missing else None

    async def store() -> str | None:
        await asyncio.to_thread(objects.ping)
        return None

    return App(NAME, components, {"broker": bus.check, "objects": store, "extra": extra})
