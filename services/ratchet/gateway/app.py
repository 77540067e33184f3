"""Composition root of the gateway. A call runs from left to right:

agents ── HTTP ── Guard ── JsonApi ── http_api ┬─ Completions ┬─ CallRouter ── kv_routes.Routes ── KV `policies`; files
                                               │              └─ Answering ┬─ AnswerCache
                                               │                           ├─ PolicyEngine ── vLLM, engine_local
                                               │                           ├─ OpenAiEngine ── any other server
                                               │                           └─ Recorder ┬─ RecorderPool ── processes
                                               ├─ Handlers ── Recorder                 └─ Outbox ── JetStream; spool
                                               └─ forward ── rl_coordinator
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import BackgroundConnection, Bus
from ratchet.bus.envelope import Sealer
from ratchet.bus.outbox import Outbox
from ratchet.bus.spool import Spool
from ratchet.contract.turn import EngineInfo
from ratchet.errors import ConfigError
from ratchet.gateway.answering import Answering
from ratchet.gateway.call_router import CallRouter
from ratchet.gateway.completions import Completions
from ratchet.gateway.domain.answers import MODES
from ratchet.gateway.domain.memory import AnswerCache
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.engines import build_upstream
from ratchet.gateway.engines.http_post import Address, HttpPost, open_session
from ratchet.gateway.engines.policies import NAME, PolicyEngine
from ratchet.gateway.guard import Guard, RateLimit
from ratchet.gateway.handlers import Handlers
from ratchet.gateway.http_api import route_finder
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.publishing import OBSERVE_S, Publishing
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_pool import FINISH_S, RecorderPool
from ratchet.gateway.recorder_process import SOURCE
from ratchet.gateway.settings import Settings
from ratchet.service.asgi import JsonApi
from ratchet.service.contracts import load_contracts
from ratchet.service.health import has_files
from ratchet.service.http import Bounds, HttpServer
from ratchet.service.http_client import AsyncApiClient, Peer
from ratchet.service.runtime import App, Periodic


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Put everything together. Without a broker the gateway serves the routes on disk and spools turns."""
    contracts = load_contracts()
    shared, folder = settings.shared, settings.shared.data_dir / "gateway"
    broker = BackgroundConnection(lambda: Bus.connect(shared.bus, name="gateway", contracts=contracts))
    spool = open_spool(folder / "spool", settings.spool_bytes)
    outbox = Outbox(contracts, SOURCE, spool, queue_limit=settings.queue_limit)
    publishing = Publishing(outbox, broker.bus, close_s=settings.close_s, patience_s=settings.lease_s)
    pool = RecorderPool(settings.recorders, settings.conversation_bytes)
    recorder = Recorder(outbox, Sealer(contracts, SOURCE, utc_now), pool, settings.recording_bytes)
    routes = Routes(broker.bus, folder, lease_s=settings.lease_s, monotonic=time.monotonic)
    arms = Arms(settings.arms_bytes)
    session = open_session()
    router = CallRouter(
        routes,
        policy_engine(settings, session, routes),
        [build_upstream(upstream, session) for upstream in settings.upstreams],
        announce=recorder.publish_start,
        is_blind=publishing.is_blind,
        now=utc_now,
    )
    cache, mode = AnswerCache(settings.cache_bytes), MODES.get(settings.engine_logprobs_mode)
    completions = Completions(
        router=router,
        answering=Answering(router, cache, recorder, mode),
        arms=arms,
        user_key=settings.user_key.get_secret_value() if settings.user_key else None,
        keep_alive_s=settings.keep_alive_s,
        now=utc_now,
    )
    handlers = Handlers(router=router, recorder=recorder, arms=arms, contracts=contracts, now=utc_now)
    coordinator = AsyncApiClient(Peer("the coordinator", settings.coordinator_url or ""))
    find = route_finder(completions, handlers, coordinator if settings.coordinator_url else None)
    api = JsonApi(find, settings.body_limit, cancel_on_disconnect=True, bodies_limit=settings.bodies_bytes)
    try:
        yield App(
            "gateway",
            [
                broker,
                publishing,
                pool,
                routes,
                Periodic(OBSERVE_S, publishing.observe, "observation"),
                http_server(settings, api),
            ],
            {"routes": routes.ready, "files": has_files},
            notes={"broker": broker.check, "canaries": routes.check, "spool": publishing.check},
            drain_s=settings.grace_s + settings.drain_s + FINISH_S,
        )
    finally:
        await session.close()
        await coordinator.close()
        spool.close()


def open_spool(folder: Path, limit_bytes: int) -> Spool:
    """The spool in a folder. Raises `ConfigError` when the folder is not writable."""
    try:
        return Spool(folder, limit_bytes)
    except OSError as error:
        raise ConfigError(f"cannot spool in {folder}: {error.strerror}") from error


def policy_engine(settings: Settings, session: ClientSession, routes: Routes) -> PolicyEngine:
    """The engine that holds the policies."""
    key = settings.engine_api_key
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    address = Address(settings.engine_url, headers, settings.engine_connect_timeout_s, settings.engine_timeout_s)
    info = EngineInfo(name=settings.engine_name)
    return PolicyEngine(HttpPost(session, NAME, address), info, routes.version)


def http_server(settings: Settings, api: JsonApi) -> HttpServer:
    """The server behind API keys and rate limit, within the bounds on connections."""
    per_minute = settings.requests_per_minute
    limit = RateLimit(per_minute, time.monotonic) if per_minute else None
    bounds = Bounds(
        connections=settings.connections,
        per_address=settings.connections_per_address,
        grace_s=settings.grace_s,
        drain_s=settings.drain_s,
        header_s=settings.header_s,
        body_s=settings.body_s,
    )
    guard = Guard(api, api_keys(settings), limit, settings.trusted_proxies)
    shared = settings.shared
    return HttpServer(guard, shared.http_host, settings.port, hosts=shared.allowed_hosts, bounds=bounds)


def api_keys(settings: Settings) -> frozenset[str]:
    """The bearer tokens that agents may use, from the setting and from the file. Raises `ConfigError`."""
    keys = [key.get_secret_value() for key in settings.api_keys]
    if settings.api_keys_file is None:
        return frozenset(keys)
    try:
        lines = settings.api_keys_file.read_text().split()
    except OSError as error:
        raise ConfigError(f"cannot read the API keys: {error}") from error
    if not lines:
        raise ConfigError(f"{settings.api_keys_file} holds no API key: the gateway would let every agent in")
    return frozenset([*keys, *lines])
