"""Composition root of the coordinator: opens the connections and puts its subjects together.

    RL_REWARDS, RL_FEEDBACK ─> triggers ─┐
    HTTP API ─> http ────────────────────┼─> jobs ─> RL_TRAINING, RL_JOBS, S3 snapshots
    RL_TRAINING ─────────────────────────┘    └───> registry: policies, lineage
                                                    storage: sweeps of S3
    RL_OPT_OUTS ─> opt_outs ─> KV opt_outs, erasures
    KV erasures ─> erasures: objects, jobs, policies of what the collector has removed; receipts

Each subject builds itself; its package's docstring draws its inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from ratchet.bus.connection import Bus
from ratchet.core.datasets.clickhouse_executions import Executions
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import Unavailable
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer
from ratchet.core.service.keys import known_keys
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.erasures import KnownErasures, ask_erasure
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.erasures import FOLDER, ErasedObjects, Finisher, Receipts
from ratchet.rl_coordinator.http import ErasureRoutes, ExecutionRoutes, KeyStore, Subjects, http_app
from ratchet.rl_coordinator.jobs import build_jobs
from ratchet.rl_coordinator.jobs.domain.upkeep import untaken
from ratchet.rl_coordinator.opt_outs import opt_outs
from ratchet.rl_coordinator.registry import build_registry
from ratchet.rl_coordinator.settings import TIMING, Settings, Timing
from ratchet.rl_coordinator.storage import build_storage
from ratchet.rl_coordinator.triggers import Counters, Recipes, build_triggers, load_recipes

NAME = "rl_coordinator"
GATEWAY_S = 5.0
"""How long a request for a search waits for what the gateway says of its models."""


@asynccontextmanager
async def build(settings: Settings, timing: Timing = TIMING) -> AsyncIterator[App]:
    """Connect, and assemble the coordinator. Raises `ConfigError` before it connects."""
    recipes = load_recipes(settings)
    async with AsyncExitStack() as closing:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
        bus.bodies = StoredBodies(settings.shared)
        closing.push_async_callback(bus.close)
        warehouse = await Warehouse.connect(settings.shared)
        closing.push_async_callback(warehouse.close)
        gateway = None
        if settings.gateway_url is not None:
            gateway = await closing.enter_async_context(AsyncApiClient(gateway_peer(settings, settings.gateway_url)))
        objects = Objects(settings.shared)
        yield await assembled(settings, recipes, timing, bus=bus, warehouse=warehouse, objects=objects, gateway=gateway)


def gateway_peer(settings: Settings, url: str) -> Peer:
    """The gateway. What its keys refuse is no fault of a request."""
    key = settings.shared.service_key
    headers = bearer(key.get_secret_value() if key else None)
    return Peer("the gateway", url, headers, GATEWAY_S, errors=dict.fromkeys((401, 403), Unavailable))


async def assembled(  # noqa: PLR0913 - the connections
    settings: Settings,
    recipes: Recipes,
    timing: Timing = TIMING,
    *,
    bus: Bus,
    warehouse: Warehouse,
    objects: Objects,
    gateway: AsyncApiClient | None = None,
) -> App:
    """The coordinator on open connections."""
    counters = Counters(bus)
    registry = build_registry(settings, bus=bus, warehouse=warehouse, objects=objects)
    jobs = await build_jobs(
        settings,
        timing,
        bus=bus,
        warehouse=warehouse,
        objects=objects,
        policies=registry.policies,
        counted=counters.counted,
        gateway=gateway,
    )
    triggers = build_triggers(settings, recipes, timing, bus=bus, warehouse=warehouse, counters=counters, jobs=jobs)

    storage = build_storage(settings, bus=bus, objects=objects)

    async def check_objects() -> str | None:
        await asyncio.to_thread(objects.ping)
        return None

    checks = {"broker": bus.check, "warehouse": warehouse.check, "objects": check_objects}

    async def check_workers() -> str | None:
        return untaken(jobs.store.all_jobs(), bus.now())

    async def connected() -> Bus:
        return bus

    keys = known_keys(settings.shared, NAME, connected)
    store = KeyStore(bus, keys.own)
    erased, receipts = Erased(warehouse), Receipts(settings.shared.data_dir / FOLDER)
    finisher = Finisher(
        bus=bus,
        known=KnownErasures(bus),
        erased=erased,
        objects=ErasedObjects(objects),
        jobs=jobs,
        policies=registry.policies,
        receipts=receipts,
        snapshot_ref=Snapshots(objects, settings.shared.s3_bucket).ref,
        now=bus.now,
    )
    erasures = ErasureRoutes(bus, erased, receipts, bus.now, settings.shared.four_eyes)
    subjects = Subjects(
        jobs=jobs,
        registry=registry,
        triggers=triggers,
        storage=storage,
        keys=store,
        erasures=erasures,
        executions=ExecutionRoutes(Executions(warehouse)),
    )
    api = http_app({**checks, "workers": check_workers}, subjects, bus.now)
    audit = api.audit = audit_log_of(settings.shared, bus, NAME)
    opting_out = opt_outs(bus, partial(ask_erasure, bus), audit.note)
    server = HttpServer(
        Authentication(api, keys.caller_of),
        settings.shared.http_host,
        settings.port,
        sites=Sites(settings.shared.allowed_hosts),
        tls_file=settings.shared.tls_file,
    )
    return App(
        NAME,
        [
            audit,
            counters.rewarded,
            counters.preferences,
            *triggers.components,
            *jobs.components,
            *storage.components,
            Periodic(timing.erasure_tick_s, finisher.tick, "erasures"),
            opting_out,
            keys,
            server,
        ],
        {**checks, "keys": keys.ready},
        notes={
            "unreadable_keys": keys.check,
            "audit": audit.check,
            "consumers": bus.check_consumers,
            "rewarded": counters.rewarded.check,
            "preferences": counters.preferences.check,
            "workers": check_workers,
        },
    )
