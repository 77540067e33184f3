"""Composition root of the console.

Site ─┬─ pages: the bundle, for anybody; sign_in: people come and go
      └─ Authentication ─┬─ http_api: sessions and what pages ask, from ClickHouse and the broker
                         │    loop: the whole at a glance; its rules of attention are in domain
                         │    events: the loop and NatsHints for pages that listen
                         │    trajectories, tokens, statistics, rollouts, training, annotation: from the stores
                         └─ pass_through: what other services answer, with the caller's own key
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.console.annotation import Annotation
from ratchet.console.calls import Calls
from ratchet.console.clickhouse_loop import history_of
from ratchet.console.events import Events
from ratchet.console.http_api import Subjects, console_api
from ratchet.console.http_services import HttpServices
from ratchet.console.loop import Loop, Sources, disk_of, streams_of
from ratchet.console.nats_state import Alerts, NatsHints, Routes, drift_of
from ratchet.console.pages import Pages, Site, read_pages
from ratchet.console.pairs_file import PairsFiles
from ratchet.console.pass_through import ANALYST, CONNECT_S, COORDINATOR, DEPLOYER, GATEWAY, WORKFLOWS, PassThrough
from ratchet.console.rollouts import Rollouts
from ratchet.console.settings import Settings
from ratchet.console.tokens import Tokens
from ratchet.console.training import Training
from ratchet.console.trajectories import Trajectories
from ratchet.core.contract.state import JOBS, RATERS, Job, RaterDecisions
from ratchet.core.preferences.clickhouse_stored import StoredPreferences
from ratchet.core.preferences.quarantine import Quarantine
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.asgi import AsgiApp
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.keys import known_keys
from ratchet.core.service.runtime import App
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.audit_store import audit_log_of
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.statistics import statistics
from ratchet.core.stores.trajectory_list import TrajectoryList
from ratchet.core.stores.warehouse import Warehouse

NAME = "console"
ROUTES = {
    "coordinator": COORDINATOR,
    "deployer": DEPLOYER,
    "gateway": GATEWAY,
    "workflows": WORKFLOWS,
    "analyst": ANALYST,
}
"""What is passed on, by the first part of the path."""
log = structlog.get_logger()


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and wire everything; disconnect at the end."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts(), rules=rules_digest())
    bus.bodies = StoredBodies(settings.shared)
    warehouse = await Warehouse.connect(settings.shared)
    urls = {
        "coordinator": settings.coordinator_url,
        "deployer": settings.deployer_url,
        "gateway": settings.gateway_url,
        "workflows": settings.workflows_url,
        "analyst": settings.analyst_url,
    }
    key = settings.shared.service_key
    others = HttpServices(
        settings.health_urls,
        settings.coordinator_url,
        settings.deployer_url,
        key.get_secret_value() if key is not None else None,
    )
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(others)
            peers = {
                name: await stack.enter_async_context(AsyncApiClient(Peer(f"the {name}", url, connect_s=CONNECT_S)))
                for name, url in urls.items()
                if url is not None
            }
            yield assembled(settings, bus, warehouse, peers, others)
    finally:
        await bus.close()
        await warehouse.close()


def assembled(
    settings: Settings, bus: Bus, warehouse: Warehouse, peers: Mapping[str, AsyncApiClient], others: HttpServices
) -> App:
    """The console on open connections; `peers`: those of `ROUTES` that there are, without a key of their own."""

    async def connected() -> Bus:
        return bus

    shared = settings.shared
    keys = known_keys(shared, NAME, connected)
    pages = Pages(read_pages())
    if pages.missing is not None:
        log.warning(pages.missing)
    routes, alerts = Routes(bus), Alerts(bus)
    sources = Sources(
        history=lambda: history_of(warehouse, bus.now()),
        streams=lambda: streams_of(bus),
        training=others.training,
        rollouts=others.rollouts,
        services=others.states,
        disk=lambda: disk_of(shared.data_dir),
        alerts=alerts.current,
        notified=alerts.with_receivers,
        routes=routes.current,
    )
    loop = Loop(sources, bus.now, time.monotonic)
    events = Events(loop.current, NatsHints(bus).follow)
    subjects = subjects_of(loop, events, bus, warehouse, Objects(shared), bus.now)
    api = console_api(subjects)
    audit = api.audit = audit_log_of(shared, bus, NAME)
    passed = {name: PassThrough(name, peers.get(name), f"the {name}", table) for name, table in ROUTES.items()}
    own: AsgiApp = Authentication(api, keys.caller_of)
    owners: dict[str, AsgiApp] = {name: Authentication(app, keys.caller_of) for name, app in passed.items()}
    if shared.oidc is not None:
        # Its libraries take 10 MB.
        from ratchet.console.sign_in import PATHS, CookieSession, SignIn  # noqa: PLC0415
        from ratchet.core.service.people import People  # noqa: PLC0415

        secret = settings.oidc_secret
        signing = SignIn(People(shared.oidc), secret.get_secret_value() if secret else None)
        owners = {name: CookieSession(app) for name, app in owners.items()}
        site = Site(pages, CookieSession(own), owners, dict.fromkeys(PATHS, signing))
    else:
        site = Site(pages, own, owners)
    sites = Sites(shared.allowed_hosts)
    server = HttpServer(site, shared.http_host, settings.port, sites=sites, tls_file=shared.tls_file)
    return App(
        NAME,
        [audit, keys, routes, alerts, server, events],  # the last one stops first: its streams would hold the server up
        checks={"bus": bus.check, "keys": keys.ready},
        notes={"warehouse": warehouse.check, "unreadable_keys": keys.check, "audit": audit.check},
    )


def subjects_of(
    loop: Loop, events: Events, bus: Bus, warehouse: Warehouse, objects: Objects, now: Callable[[], datetime]
) -> Subjects:
    """What the pages are about, behind these connections."""
    listing, calls = TrajectoryList(warehouse, now), Calls(warehouse)
    return Subjects(
        loop=loop,
        drift=partial(drift_of, bus),
        events=events,
        trajectories=Trajectories(warehouse, listing),
        calls=calls,
        tokens=Tokens(calls, objects),
        statistics=partial(statistics, warehouse),
        now=now,
        rollouts=Rollouts(warehouse, listing),
        training=Training(warehouse, objects, Bucket(bus, JOBS, Job).get),
        annotation=Annotation(warehouse, listing, bus, now, Quarantine(Bucket(bus, RATERS, RaterDecisions))),
        pairs_files=PairsFiles(bus, StoredPreferences(warehouse).known),
    )
