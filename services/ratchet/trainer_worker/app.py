"""Composition root of the trainer worker.

RL_JOBS, own pool ── Consumer ── handlers.Dispatches ── Slots ── Attempt ── Child (a process: training/child.py)
                                             ForkServer ── has the imports ─┘
                                                                   ├── heartbeat: training.status
                                                                   ├── watch: `jobs` bucket
                                                                   └── S3: snapshot, base, checkpoints, policy
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Handlers, subscribe
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.errors import ConfigError, MissingExtra
from ratchet.core.rules.algorithms import PROMPTS
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.runtime import App, Component
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.objects import Objects
from ratchet.trainer_worker.attempt import TIMING, Attempt, Timing
from ratchet.trainer_worker.child_process import TRAINING
from ratchet.trainer_worker.domain import Worker
from ratchet.trainer_worker.fork_server import ForkServer, supported
from ratchet.trainer_worker.handlers import Dispatches, Slots
from ratchet.trainer_worker.settings import Settings
from ratchet.trainer_worker.slots import Slot, gpus_of_slots, visible_gpus

NAME = "trainer_worker"
REQUIRED = ("torch", "transformers", "peft")
"""Modules of the extra `trainer`, which only the child process imports. Workers of the pool `prompts` need another."""
RAY_CHILD = "ratchet.trainer_worker.training.ray_child"
OWN_CLUSTER = "local"
"""What Ray calls a cluster that a process starts for itself."""


@asynccontextmanager
async def build(settings: Settings, timing: Timing = TIMING) -> AsyncIterator[App]:
    """Connect, and assemble the worker. Without the extra it takes no jobs and says so in its readiness."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    try:
        with own_directory(settings.work):
            yield assembled(settings, timing, bus, Objects(settings.shared))
    finally:
        await bus.close()


@contextmanager
def own_directory(path: Path) -> Generator[None]:
    """Hold the work directory for this worker alone, and empty it of what a killed worker left there.

    The lock ends with the process. Raises `ConfigError` while another worker holds it.
    """
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another worker named {path.name} works in {path}; "
                "RATCHET_TRAINER_WORKER gives this one a name of its own"
            ) from error
        for left in path.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(directory)


def assembled(settings: Settings, timing: Timing, bus: Bus, objects: Objects) -> App:
    """The worker on connections that are open."""
    jobs = Bucket(bus, JOBS, Job)
    searches = settings.pool == PROMPTS
    on_ray = settings.engine == "ray" and not searches  # a search has no ranks to spread
    extras = "prompts" if searches else "trainer,ray" if on_ray else "trainer"
    required = ("gepa",) if searches else (*REQUIRED, "ray") if on_ray else REQUIRED
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    worker = Worker(settings.worker, instance=uuid4().hex)

    def attempt(received: Received[TrainingDispatch], slot: Slot) -> Attempt:
        return Attempt(received, bus=bus, jobs=jobs, objects=objects, settings=settings, slot=slot, timing=timing)

    chosen, visible = (None, None) if on_ray else (settings.gpus, visible_gpus(os.environ))  # Ray gives away its own
    gpus = [""] * settings.slots if searches else gpus_of_slots(settings.slots, chosen, visible, settings.ranks)
    warm = ForkServer() if supported() and not missing and not on_ray and not searches else None
    program = (RAY_CHILD, settings.ray_address or OWN_CLUSTER) if on_ray else TRAINING
    places = [Slot(worker.instance, gpu, warm, settings.ranks, program) for gpu in gpus]
    slots = Slots(places, attempt)
    audit = audit_log_of(settings.shared, bus, NAME)
    components: list[Component] = [audit, slots] if warm is None else [audit, warm, slots]
    if not missing:
        handlers: Handlers = {TrainingDispatch: Dispatches(slots, jobs, worker, audit).on_dispatches}
        components.append(subscribe(bus, "trainer-<pool>", handlers, parameters={"pool": settings.pool}))

    async def extra() -> str | None:
        return f"{MissingExtra(extras, 'training')} (missing: {', '.join(missing)})" if missing else None

    async def store() -> str | None:
        await asyncio.to_thread(objects.ping)
        return None

    checks = {"broker": bus.check, "objects": store, "extra": extra}
    return App(NAME, components, checks, {"audit": audit.check}, settings.drain_s)
