"""Composition root of the analyst.

HTTP API ─┬─ EpisodeRoutes ── ClickHouse
          └─ PatternRoutes, PlanRoutes ┐
Leadership ─┬─ Runs ───────────────────┼─ KV patterns, plans; Trail ── RL_LEARNING
            │                          ├─ StoredEpisodes, Effects ── ClickHouse
            │                          └─ questions.ask ── mining_process, one a run ── ClickHouse
            └─ Plans ─┬─ Drafting
                      └─ Executing ── Deployer, Coordinator: HTTP
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from ratchet.analyst import metrics
from ratchet.analyst.clickhouse_episodes import StoredEpisodes
from ratchet.analyst.domain.windows import LENGTHS
from ratchet.analyst.drafting import Drafting
from ratchet.analyst.effects import Effects, stored_episodes
from ratchet.analyst.executing import Executing
from ratchet.analyst.http_api import PatternRoutes, http_app
from ratchet.analyst.http_clients import Coordinator, Deployer, peer
from ratchet.analyst.http_episodes import EpisodeRoutes
from ratchet.analyst.http_plans import PlanRoutes
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.kv_plans import PlanStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.plans import LOOK_S as PLANS_LOOK_S, Plans
from ratchet.analyst.questions import Place, ask
from ratchet.analyst.runs import LOOK_S, Runs
from ratchet.analyst.settings import Settings
from ratchet.analyst.waiting import Waiting
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.core.contract import Alert
from ratchet.core.contract.learning import LEADERS, AdaptationPlan
from ratchet.core.contract.state import BASELINES, POLICIES, RewardDrift, Route
from ratchet.core.errors import MissingExtra
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.keys import known_keys
from ratchet.core.service.leadership import Election, Leader, Leadership, WhileLeading
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.history import History
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.trajectories import StoredTrajectories
from ratchet.core.stores.warehouse import Warehouse

NAME = "analyst"
ELECTION = Election("analyst", "analyst", metrics.LEADING)


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
        chosen = settings.key or settings.shared.service_key
        key = chosen.get_secret_value() if chosen else None
        deployer = await closing.enter_async_context(AsyncApiClient(peer("deployer", settings.deployer_url, key)))
        coordinator = await closing.enter_async_context(
            AsyncApiClient(peer("coordinator", settings.coordinator_url, key))
        )
        yield assembled(settings, bus, warehouse, Deployer(deployer), Coordinator(coordinator))


def assembled(settings: Settings, bus: Bus, warehouse: Warehouse, deployer: Deployer, coordinator: Coordinator) -> App:
    """The service on open connections."""

    async def connected() -> Bus:
        return bus

    async def plans_of(role: str, pattern_id: str) -> list[AdaptationPlan]:
        entries = await plans.every(lambda name: name == role)
        return [entry.value for entry in entries if entry.value.pattern_id == pattern_id]

    async def is_known(role: str) -> bool:
        return role in await stored.roles(bus.now() - 2 * LENGTHS[-1])

    async def uses_gateway(role: str) -> bool:
        return await stored.has_starts(role, bus.now() - LENGTHS[-1])

    def look_after_plans() -> Periodic:
        episodes = stored_episodes(stored)
        drafting = Drafting(deployer, coordinator, History(warehouse), episodes)
        executing = Executing(deployer, coordinator, Effects(warehouse, episodes), leadership.confirm)
        roles = frozenset(settings.self_approved)
        leading = Plans(plans, store, trail, drafting, executing, waiting, audit, roles, bus.now)
        return Periodic(PLANS_LOOK_S, leading.look, "look after plans")

    plans, store, trail, shared = PlanStore(bus), PatternStore(bus), Trail(bus), settings.shared
    stored = StoredEpisodes(warehouse)
    keys = known_keys(shared, NAME, connected)
    leadership = Leadership(ELECTION, Bucket(bus, LEADERS, Leader), f"http://{shared.http_host}:{settings.port}")
    runs = _runs(shared, bus, stored, leadership)
    waiting = Waiting(plans, deployer, coordinator, uses_gateway)
    looks = PatternRoutes(store, trail, runs, plans_of, is_known, bus.now)
    decisions = PlanRoutes(plans, store, trail, waiting, is_known, bus.now)
    api = http_app([looks, decisions, EpisodeRoutes(StoredTrajectories(warehouse), store.open_of)])
    audit = api.audit = audit_log_of(shared, bus, NAME)
    sites = Sites(shared.allowed_hosts)
    callers = Authentication(api, keys.caller_of)
    server = HttpServer(callers, shared.http_host, settings.port, sites=sites, tls_file=shared.tls_file)
    looking = WhileLeading(
        leadership, lambda: Periodic(LOOK_S, runs.look, "look at roles"), lambda: metrics.LOOKED.set(0)
    )
    adapting = WhileLeading(leadership, look_after_plans, metrics.stop_showing)
    checks = {"broker": bus.check, "warehouse": warehouse.check, "keys": keys.ready, "leader": leadership.check}
    notes = {"unreadable_keys": keys.check, "audit": audit.check}
    return App(NAME, [audit, keys, leadership, looking, adapting, server], checks, notes=notes)


def _runs(shared: SharedSettings, bus: Bus, stored: StoredEpisodes, leadership: Leadership) -> Runs:
    routes, rewards = Bucket(bus, POLICIES, Route), Bucket(bus, BASELINES, RewardDrift)

    async def stable(role: str) -> str | None:
        entry = await routes.get(role)
        return entry.value.stable.name if entry and entry.value.stable else None

    async def alerts(role: str) -> list[Alert]:
        entries = (await rewards.below(f"drift.{role}")).values()
        watched = [metric for entry in entries if isinstance(entry, Entry) for metric in entry.value.metrics]
        return [metric.alert for metric in watched if metric.alert is not None]

    place = Place(url=shared.clickhouse_url, database=shared.clickhouse_database, timeout_s=shared.clickhouse_timeout_s)
    return Runs(PatternStore(bus), Trail(bus), leadership, stored, ask, stable, alerts, place, bus.now)
