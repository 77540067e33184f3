"""Composition root of the workflow service.

HTTP API ── Runners ── Runner, one for each workflow ─┬─ Planning ── the gateway: policy and arm; Planners ── S3
                │                                     ├─ Executor ── the gateway: models; HTTP tools
KV workflows ───┴── Held: one compare-and-set a step ─┤
KV workers ──────── registry, measures ───────────────┴─ Results ── RL_TRAJECTORIES, RL_WORKFLOWS
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ratchet.bus.connection import Bus
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.keys import known_keys
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.runtime import App
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.workflows.http_api import WorkerRoutes, WorkflowRoutes, http_app
from ratchet.workflows.http_gateway import HttpGateway, gateway_peer
from ratchet.workflows.http_tools import ask_tool
from ratchet.workflows.kv_workers import WorkerStore
from ratchet.workflows.kv_workflows import WorkflowStore
from ratchet.workflows.nats_results import Results
from ratchet.workflows.parts import Parts
from ratchet.workflows.planners import Planners
from ratchet.workflows.runners import TIMING, Runners, Timing
from ratchet.workflows.settings import Settings

NAME = "workflows"


@asynccontextmanager
async def build(settings: Settings, timing: Timing = TIMING) -> AsyncIterator[App]:
    """Connect, and assemble the service."""
    key = settings.shared.service_key
    async with AsyncExitStack() as closing:
        bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts(), rules=rules_digest())
        bus.bodies = StoredBodies(settings.shared)
        closing.push_async_callback(bus.close)
        peer = gateway_peer(settings.gateway_url, key.get_secret_value() if key else None)
        gateway = await closing.enter_async_context(AsyncApiClient(peer))
        yield assembled(settings, bus, HttpGateway(gateway), Objects(settings.shared), timing)


def assembled(settings: Settings, bus: Bus, gateway: HttpGateway, objects: Objects, timing: Timing = TIMING) -> App:
    """The service on open connections."""

    async def connected() -> Bus:
        return bus

    store, workers, opt_outs = WorkflowStore(bus), WorkerStore(bus), KnownOptOuts(connected)
    parts = Parts(
        store=store,
        registry=workers,
        gateway=gateway,
        ask_tool=ask_tool,
        planners=Planners(objects.get),
        publish=Results(bus, opt_outs).publish,
        now=bus.now,
        planning_model=settings.planning_model,
    )
    runners, keys = Runners(parts, timing), known_keys(settings.shared, NAME, connected)
    user_key = settings.user_key.get_secret_value() if settings.user_key else None
    api = http_app(WorkflowRoutes(runners, store, user_key, bus.now), WorkerRoutes(workers))
    audit = api.audit = audit_log_of(settings.shared, bus, NAME)
    server = HttpServer(
        Authentication(api, keys.caller_of),
        settings.shared.http_host,
        settings.port,
        sites=Sites(settings.shared.allowed_hosts),
        tls_file=settings.shared.tls_file,
    )
    checks = {"broker": bus.check, "keys": keys.ready, "opt_outs": opt_outs.ready}
    notes = {"unreadable_keys": keys.check, "audit": audit.check}
    return App(NAME, [audit, opt_outs, keys, runners, server], checks, notes=notes)
