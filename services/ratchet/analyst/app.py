"""Composition root of the analyst.

HTTP API ─┬─ EpisodeRoutes ── ClickHouse
          └─ PatternRoutes ┐
Leadership ── Runs ────────┼─ KV patterns; Trail ── RL_LEARNING
                           ├─ StoredEpisodes ── ClickHouse
                           └─ questions.ask ── mining_process, one a run ── ClickHouse
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from ratchet.analyst import metrics
from ratchet.analyst.clickhouse_episodes import StoredEpisodes
from ratchet.analyst.http_api import PatternRoutes, http_app
from ratchet.analyst.http_episodes import EpisodeRoutes
from ratchet.analyst.kv_patterns import LEADER, PatternStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.questions import Place, ask
from ratchet.analyst.runs import LOOK_S, Runs
from ratchet.analyst.settings import Settings
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.learning import PATTERNS, PLANS, AdaptationPlan, Pattern
from ratchet.core.contract.state import POLICIES, Route
from ratchet.core.errors import MissingExtra
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.keys import known_keys
from ratchet.core.service.leadership import Election, Leader, Leadership, WhileLeading
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.trajectories import StoredTrajectories
from ratchet.core.stores.warehouse import Warehouse

NAME = "analyst"
ELECTION = Election(LEADER, "analyst", metrics.LEADING)


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble the service. Raises `MissingExtra`."""
    if find_spec("sklearn") is None:
        raise MissingExtra("analyst", "the analyst")
    async with AsyncExitStack() as closing:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts(), rules=rules_digest())
        bus.bodies = StoredBodies(settings.shared)
        closing.push_async_callback(bus.close)
        warehouse = await Warehouse.connect(settings.shared)
        closing.push_async_callback(warehouse.close)
        yield assembled(settings, bus, warehouse)


def assembled(settings: Settings, bus: Bus, warehouse: Warehouse) -> App:
    """The service on open connections."""

    async def connected() -> Bus:
        return bus

    async def plans_of(role: str, pattern_id: str) -> list[AdaptationPlan]:
        entries = await plans.items(lambda key: key.partition(".")[0] == role)
        return [entry.value for entry in entries.values() if entry.value.pattern_id == pattern_id]

    async def stable(role: str) -> str | None:
        entry = await routes.get(role)
        return entry.value.stable.name if entry and entry.value.stable else None

    async def look() -> None:
        await runs.look()
        held = await plans.items()
        metrics.count([entry.value for entry in await store.every()], [entry.value for entry in held.values()])

    async def open_patterns(role: str) -> list[Pattern]:
        entries = await store.every(lambda name: name == role)
        return [entry.value for entry in entries if entry.value.state == "open"]

    plans, store, trail = Bucket(bus, PLANS, AdaptationPlan), PatternStore(bus), Trail(bus)
    routes, shared = Bucket(bus, POLICIES, Route), settings.shared
    keys = known_keys(settings.shared, NAME, connected)
    url = f"http://{shared.http_host}:{settings.port}"
    leadership = Leadership(ELECTION, Bucket(bus, PATTERNS, Leader), url)
    place = Place(url=shared.clickhouse_url, database=shared.clickhouse_database, timeout_s=shared.clickhouse_timeout_s)
    runs = Runs(store, trail, leadership, StoredEpisodes(warehouse), ask, stable, place, bus.now)
    episodes = EpisodeRoutes(StoredTrajectories(warehouse), open_patterns)
    api = http_app([PatternRoutes(store, trail, runs, plans_of, bus.now), episodes])
    audit = api.audit = audit_log_of(settings.shared, bus, NAME)
    server = HttpServer(
        Authentication(api, keys.caller_of),
        shared.http_host,
        settings.port,
        sites=Sites(settings.shared.allowed_hosts),
        tls_file=settings.shared.tls_file,
    )
    looking = WhileLeading(leadership, lambda: Periodic(LOOK_S, look, "look at roles"))
    checks = {"broker": bus.check, "warehouse": warehouse.check, "keys": keys.ready, "leader": leadership.check}
    notes = {"unreadable_keys": keys.check, "audit": audit.check}
    return App(NAME, [audit, keys, leadership, looking, server], checks, notes=notes)
