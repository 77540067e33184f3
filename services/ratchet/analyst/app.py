"""Composition root of the analyst.

HTTP API ─┬─ PatternRoutes ── KV patterns; Trail ── RL_LEARNING
Leadership ── one of several analysts acts
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ratchet.analyst import metrics
from ratchet.analyst.http_api import PatternRoutes, http_app
from ratchet.analyst.kv_patterns import LEADER, PatternStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.settings import Settings
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.learning import PATTERNS, PLANS, AdaptationPlan
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.keys import known_keys
from ratchet.core.service.leadership import Election, Leader, Leadership
from ratchet.core.service.runtime import App
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.warehouse import Warehouse

NAME = "analyst"
ELECTION = Election(LEADER, "analyst", metrics.LEADING)


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and assemble the service."""
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

    plans, store, trail = Bucket(bus, PLANS, AdaptationPlan), PatternStore(bus), Trail(bus)
    keys = known_keys(settings.shared, NAME, connected)
    own_url = f"http://{settings.shared.http_host}:{settings.port}"
    leadership = Leadership(ELECTION, Bucket(bus, PATTERNS, Leader), own_url)
    api = http_app([PatternRoutes(store, trail, plans_of, bus.now)])
    audit = api.audit = audit_log_of(settings.shared, bus, NAME)
    server = HttpServer(
        Authentication(api, keys.caller_of),
        settings.shared.http_host,
        settings.port,
        sites=Sites(settings.shared.allowed_hosts),
        tls_file=settings.shared.tls_file,
    )
    checks = {"broker": bus.check, "warehouse": warehouse.check, "keys": keys.ready, "leader": leadership.check}
    notes = {"unreadable_keys": keys.check, "audit": audit.check}
    return App(NAME, [audit, keys, leadership, server], checks, notes=notes)
