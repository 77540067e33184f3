"""Composition root of the gateway. A call runs from left to right; before `Guard`, `Authentication` tells who calls:

agents ── HTTP ── Guard ── JsonApi ── http_api ┬─ Completions ┬─ CallOpener ┬─ Identity, Arms
                                               │              │             └─ CallRouter ── kv_routes.Routes ── KV
                                               │              └─ Answering ┬─ AnswerCache
                                               │                           ├─ PolicyEngine ── vLLM, engine_local
                                               │                           ├─ OpenAiEngine ── any other server
                                               │                           └─ Recorder ┬─ RecorderPool ── processes
                                               ├─ Handlers ── Recorder                 └─ Outbox ── JetStream; spool
                                               └─ forward ── rl_coordinator
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import BackgroundConnection, Bus
from ratchet.bus.contracts import Contracts
from ratchet.bus.kv import Bucket
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import Spool
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.state import BUNDLES, RESPONSES, SealedResponse
from ratchet.core.errors import ConfigError
from ratchet.core.rules.access import AGENT_SCOPES, SERVICE_SCOPES, KeyScope
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.rules.recent_share import COLLECTION
from ratchet.core.service.asgi import JsonApi
from ratchet.core.service.authentication import Authentication
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.health import has_files
from ratchet.core.service.http import Bounds, HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.keys import KnownKeys, known_keys, setting_key
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.message_bodies import StoredBodies
from ratchet.gateway.answering import Answering
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.calls import CallOpener, RequestReader, new_id
from ratchet.gateway.completions import Completions
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.domain.identity import Identity
from ratchet.gateway.domain.past_calls import AnswerCache
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.engines import build_upstream, transport_to
from ratchet.gateway.engines.policies import PolicyEngines
from ratchet.gateway.engines.replicas import CHECK_EVERY_S
from ratchet.gateway.error_shapes import ErrorShapes, error_json
from ratchet.gateway.fetching import BundleFetcher
from ratchet.gateway.filtering import Filtering
from ratchet.gateway.guard import Guard, RateLimit
from ratchet.gateway.handlers import Handlers
from ratchet.gateway.http_api import further_routes, is_json, route_finder
from ratchet.gateway.kv_bundles import Bundles
from ratchet.gateway.kv_responses import Responses
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.metrics import LOOK_S, FailingCalls
from ratchet.gateway.models import Models
from ratchet.gateway.opt_outs import OptOutRoutes
from ratchet.gateway.other_calls import OtherCalls
from ratchet.gateway.peer_sync import Memory, PeerSync
from ratchet.gateway.publishing import OBSERVE_S, Publishing
from ratchet.gateway.quotas import Quotas
from ratchet.gateway.recorder import Recorder, StreamMemory
from ratchet.gateway.recorder_pool import FINISH_S, RecorderPool, Recorders
from ratchet.gateway.recorder_process import SOURCE
from ratchet.gateway.settings import Constants, Settings
from ratchet.gateway.telemetry import Telemetry
from ratchet.gateway.unrecorded import Unrecorded

SERVICES_MAY = (*SERVICE_SCOPES, str(KeyScope.OPERATE))
"""The deployer asks a version that was rolled back before it serves again. Here no more than that takes this scope."""


@asynccontextmanager
async def build(
    settings: Settings, recorders: Recorders | None = None, constants: Constants | None = None
) -> AsyncIterator[App]:
    """Put everything together. Without a broker the gateway serves the routes on disk and spools turns.

    `recorders`: by default processes of their own.
    """
    constants = constants or Constants()
    async with AsyncExitStack() as closing:
        recording = _recording(settings, constants, recorders, closing)
        routing = _routing(settings, constants, recording, closing)
        reader = RequestReader()
        closing.callback(reader.close)
        filtering = Filtering(settings.filters, recording.recorder.record_feedback, reader)
        closing.callback(filtering.close)
        guard, peer_sync = _guard(settings, constants, recording, routing, filtering, closing)
        keys = keys_of(settings, recording.broker.bus)
        routes, engines, publishing = routing.routes, routing.engines, recording.publishing

        failing = FailingCalls()

        async def engines_away() -> str | None:
            # Before a role has a policy there may be no engine: the local stack starts one when it is needed.
            return await engines.check() if routes.roles() else None

        yield App(
            "gateway",
            [
                recording.broker,
                publishing,
                recording.pool,
                peer_sync,
                routes,
                keys,
                recording.quotas,
                recording.unrecorded.known,
                Periodic(OBSERVE_S, publishing.observe, "observation"),
                Periodic(LOOK_S, failing.observe, "failing calls"),
                Periodic(CHECK_EVERY_S, engines.check_health, "replicas"),
                http_server(settings, constants, guard, keys),
            ],
            {
                "routes": routes.ready,
                "other_gateways": peer_sync.ready,
                "keys": keys.ready,
                "files": has_files,
                "opt_outs": recording.unrecorded.known.ready,
            },
            notes={
                "broker": recording.broker.check,
                "canaries": routes.check,
                "engines": engines_away,
                "spool": publishing.check,
                COLLECTION: publishing.check_collection,
                "errors": failing.check,
                "filters": filtering.check,
                "unreadable_keys": keys.check,
            },
            drain_s=settings.grace_s + settings.drain_s + FINISH_S,
        )


@dataclass(frozen=True)
class _Recording:
    """What becomes of calls: turns and starts on their way to the broker, and what counts against quotas."""

    contracts: Contracts
    broker: BackgroundConnection
    publishing: Publishing
    pool: Recorders
    updates: PeerUpdates
    quotas: Quotas
    recorder: Recorder
    bodies: StoredBodies
    arms: Arms
    unrecorded: Unrecorded


def keys_of(settings: Settings, connect: Callable[[], Awaitable[Bus]]) -> KnownKeys:
    """The keys that open the gateway."""
    own = [setting_key(key.get_secret_value(), "agents", AGENT_SCOPES) for key in settings.api_keys]
    return known_keys(settings.shared, "gateway", connect, own, SERVICES_MAY)


def _recording(
    settings: Settings, constants: Constants, recorders: Recorders | None, closing: AsyncExitStack
) -> _Recording:
    contracts, shared = load_contracts(), settings.shared
    bodies = StoredBodies(shared)

    async def connect() -> Bus:
        bus = await Bus.connect(shared.bus, name="gateway", contracts=contracts, echo=False)
        bus.bodies = bodies
        return bus

    broker = BackgroundConnection(connect)
    spool = open_spool(shared.data_dir / "gateway" / "spool", constants.spool_bytes)
    closing.callback(spool.close)
    outbox = Outbox(contracts, SOURCE, spool, queue_limit=constants.queue_limit)
    publishing = Publishing(outbox, broker.bus, close_s=constants.close_s, patience_s=constants.lease_s)
    pool = recorders or RecorderPool(settings.recorders, constants.conversation_bytes)
    updates = PeerUpdates(constants.conversation_bytes // 8)
    quotas = Quotas(broker.bus, utc_now, time.monotonic, updates, has_prices=settings.prices.are_set)
    streams = StreamMemory(settings.streams_bytes)
    arms = Arms(constants.arms_bytes)
    unrecorded = Unrecorded(KnownOptOuts(broker.bus), arms, updates, outbox.put, new_id, utc_now)
    recorder = Recorder(outbox, pool, settings.recording_bytes, streams, unrecorded, quotas.account)
    return _Recording(contracts, broker, publishing, pool, updates, quotas, recorder, bodies, arms, unrecorded)


@dataclass(frozen=True)
class _Routing:
    """Who answers calls: policies by their routes, and upstreams."""

    routes: Routes
    engines: PolicyEngines
    models: Models
    router: CallRouter


def _routing(settings: Settings, constants: Constants, recording: _Recording, closing: AsyncExitStack) -> _Routing:
    broker, folder = recording.broker, settings.shared.data_dir / "gateway"
    bundles = Bundles(lambda: Bucket(bus, BUNDLES, Bundle) if (bus := broker.connected) else None, folder / "bundles")
    routes = Routes(broker.bus, folder, lease_s=constants.lease_s, monotonic=time.monotonic, bundles=bundles)
    transports = list(map(transport_to, settings.upstreams))
    for transport in transports:
        closing.push_async_callback(transport.close)
    engines = PolicyEngines(
        settings.engines,
        connect_s=constants.engine_connect_timeout_s,
        answer_s=settings.engine_timeout_s,
        idle_s=constants.engine_idle_s,
    )
    closing.push_async_callback(engines.close)
    upstreams = list(map(build_upstream, settings.upstreams, transports))
    known = {upstream.name: upstream.known_models for upstream in settings.upstreams}
    roles = [*settings.roles, *(role for role in settings.filters if role != ANY_ROLE)]
    models = Models(routes, upstreams, settings.aliases, roles, settings.other_role, upstream_models=known)
    announce, is_blind = recording.recorder.publish_start, recording.publishing.is_blind
    router = CallRouter(routes, engines.of, upstreams, announce=announce, is_blind=is_blind, now=utc_now)
    return _Routing(routes, engines, models, router)


def _guard(
    settings: Settings,
    constants: Constants,
    recording: _Recording,
    routing: _Routing,
    filtering: Filtering,
    closing: AsyncExitStack,
) -> tuple[Guard, PeerSync]:
    """The API behind its limits, and what tells the other gateways of its calls."""
    broker, updates, quotas, recorder = recording.broker, recording.updates, recording.quotas, recording.recorder
    models, router = routing.models, routing.router

    # Which trajectory a call belongs to, by what this gateway and the others remember, and its caller's rate.
    arms, unrecorded, rest_s = recording.arms, recording.unrecorded, constants.conversation_rest_s
    identity = Identity(constants.identity_bytes, new_id, time.time, rest_s=rest_s, updates=updates)
    limit = RateLimit(time.monotonic, gateways=lambda: updates.gateways)
    memory = Memory(identity, arms, updates.calls, recorder.order, (quotas.learn, limit.learn))
    peer_sync = PeerSync(broker.bus, updates, memory, time.time)

    coordinator = AsyncApiClient(Peer("the coordinator", settings.coordinator_url or ""))
    closing.push_async_callback(coordinator.close)
    kept = Responses(lambda: Bucket(bus, RESPONSES, SealedResponse) if (bus := broker.connected) else None)
    continuing = Continuing(kept)
    closing.push_async_callback(continuing.close)
    user_key = settings.user_key.get_secret_value() if settings.user_key else None
    subject_key = settings.subject_key
    calls = CallOpener(
        reader=filtering.reader,
        models=models,
        router=router,
        continuing=continuing,
        arms=arms,
        identity=identity,
        peer_sync=peer_sync,
        user_key=user_key,
        subject_key=subject_key,
        now=utc_now,
        unrecorded=unrecorded,
        continues_traces=settings.span_exporter_endpoint is not None,
    )
    cache = AnswerCache(settings.cache_bytes)
    modes, limits = settings.logprob_modes, settings.limits
    answering = Answering(
        router, cache, recorder, identity, filtering.reader, modes, settings.prices, limits, filtering
    )
    completions = Completions(calls, answering, continuing, constants.keep_alive_s)
    handlers = Handlers(
        recorder=recorder,
        continuing=continuing,
        arms=arms,
        identity=identity,
        peer_sync=peer_sync,
        updates=updates,
        contracts=recording.contracts,
        bodies=recording.bodies,
        unrecorded=unrecorded,
        user_key=user_key,
        now=utc_now,
    )
    others = OtherCalls(filtering.reader, models, router, settings.prices, quotas.account)
    asked = coordinator if settings.coordinator_url else None
    telemetry = Telemetry(
        recorder,
        lambda: broker.connected,
        settings.service_roles,
        settings.other_role,
        user_key,
        unrecorded,
        settings.prices,
        utc_now,
    )
    further = further_routes(BundleFetcher(calls, updates), telemetry, OptOutRoutes(unrecorded, user_key))
    find = route_finder(completions, others, handlers, further, asked, quotas)
    api = JsonApi(
        find,
        settings.body_limit,
        cancel_on_disconnect=True,
        bodies_limit=constants.bodies_bytes,
        counts=is_json,
    )
    used = partial(updates.used, requests=1)
    return Guard(api, limit, settings.requests_per_minute, used, settings.trusted_proxies), peer_sync


def open_spool(folder: Path, limit_bytes: int) -> Spool:
    """A spool of this process alone under a folder. Raises `ConfigError` when the folder is not writable."""
    try:
        return Spool.claim(folder, limit_bytes)
    except OSError as error:
        raise ConfigError(f"cannot spool in {folder}: {error.strerror}") from error


def http_server(settings: Settings, constants: Constants, guard: Guard, keys: KnownKeys) -> HttpServer:
    """The server behind API keys, within the bounds on connections."""
    bounds = Bounds(
        connections=settings.connections,
        per_address=settings.connections_per_address,
        grace_s=settings.grace_s,
        drain_s=settings.drain_s,
        header_s=constants.header_s,
        body_s=constants.body_s,
        error_json=error_json,
    )
    app, host = ErrorShapes(Authentication(guard, keys.caller_of)), settings.shared.http_host
    tls_file = settings.shared.tls_file
    sites = Sites(settings.shared.allowed_hosts, settings.cors_origins)
    return HttpServer(
        app, host, settings.port, sites=sites, bounds=bounds, shared=settings.shares_port, tls_file=tls_file
    )
