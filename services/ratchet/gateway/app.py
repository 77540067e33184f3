"""Composition root of the gateway.

agents ── HTTP ── Guard ── JsonApi ── paths ── handlers.Gateway ── Answering ┬─ AnswerCache
                                        │        │       │                   ├─ PolicyEngine ── vLLM, engine_local
                                        │        │       │                   └─ OpenAiEngine ── any other server
                                        │        │       └─ kv_routes.Routes ── Broker ── KV `policies`; files
                                        │        └─ Recorder ┬─ Outbox ── Broker ── JetStream; spool
                                        │                    └─ Recorders ── processes that redact, check and seal
                                        └─ Coordinator ── rl_coordinator
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
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
from ratchet.gateway.coordinator import Coordinator
from ratchet.gateway.domain.answer_cache import AnswerCache
from ratchet.gateway.domain.arms import Arms
from ratchet.gateway.domain.calls import split_path
from ratchet.gateway.domain.capture import MODES
from ratchet.gateway.domain.observation import Observation
from ratchet.gateway.domain.rate_limit import RateLimit
from ratchet.gateway.engines import build_upstream
from ratchet.gateway.engines.http_post import Address, HttpPost, open_session
from ratchet.gateway.engines.policies import NAME, PolicyEngine
from ratchet.gateway.guard import Guard
from ratchet.gateway.handlers import Gateway
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorders import FINISH_S, Recorders
from ratchet.gateway.recording import SOURCE
from ratchet.gateway.settings import Settings
from ratchet.service.asgi import Answer, Handler, JsonApi, Request
from ratchet.service.contracts import load_contracts
from ratchet.service.health import has_files
from ratchet.service.http import Bounds, HttpServer
from ratchet.service.http_client import AsyncApiClient, Peer
from ratchet.service.problems import HttpError
from ratchet.service.runtime import App, Periodic

Routed = Callable[[Request, str | None], Awaitable[Answer]]
"""A handler, given the trajectory that the path names."""

LOOK_S = 1.0
"""How often the gateway looks whether what it publishes is stored."""

_END = re.compile(r"/v1/trajectories/(?P<trajectory>[^/]+)/end")
_MODEL = re.compile(r"/v1/models/(?P<name>[^/]+)")


class Publishing:
    """The outbox as a component."""

    def __init__(self, outbox: Outbox, connect: Callable[[], Awaitable[Bus]], close_s: float) -> None:
        self._outbox = outbox
        self._connect = connect
        self._close_s = close_s

    async def run(self) -> None:
        """Publish until stopped."""
        await self._outbox.run(self._connect)

    async def stop(self) -> None:
        """Publish what is queued, within the deadline; the rest stays in the spool."""
        await self._outbox.flush(self._close_s)
        await self._outbox.stop()

    async def check(self) -> str | None:
        """Readiness: how many events were lost because neither memory nor disk had room."""
        lost = self._outbox.stats.overflowed
        return f"{lost} events lost: the queue or the spool on disk was full" if lost else None


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Put everything together. The broker may be away: what is known on disk is served, and turns are spooled."""
    contracts = load_contracts()
    broker = BackgroundConnection(lambda: Bus.connect(settings.shared.bus, name="gateway", contracts=contracts))
    folder = settings.shared.data_dir / "gateway"
    spool = _spool(folder / "spool", settings.spool_bytes)
    outbox = Outbox(contracts, SOURCE, spool, queue_limit=settings.queue_limit)
    session = open_session()
    routes = Routes(broker.bus, folder, lease_s=settings.lease_s, monotonic=time.monotonic)
    observation = Observation(settings.lease_s, time.monotonic())
    recorders = Recorders(settings.recorders, settings.conversation_bytes)
    recorder = Recorder(outbox, Sealer(contracts, SOURCE, utc_now), recorders, settings.recording_bytes)
    gateway = Gateway(
        routes=routes,
        answering=Answering(
            routes,
            policy_engine(settings, session, routes),
            [build_upstream(upstream, session) for upstream in settings.upstreams],
            AnswerCache(settings.cache_bytes),
            recorder,
            MODES.get(settings.engine_logprobs_mode),
        ),
        recorder=recorder,
        arms=Arms(settings.arms_bytes),
        contracts=contracts,
        user_key=settings.user_key.get_secret_value() if settings.user_key else None,
        keep_alive_s=settings.keep_alive_s,
        is_blind=lambda: observation.is_blind(time.monotonic()),
        now=utc_now,
    )

    async def look() -> None:
        stats = outbox.stats
        observation.look(
            published=stats.published, pending=outbox.pending, lost=stats.overflowed, now_s=time.monotonic()
        )

    forwarding = AsyncApiClient(Peer("the coordinator", settings.coordinator_url or ""))
    coordinator = Coordinator(forwarding) if settings.coordinator_url else None
    publishing = Publishing(outbox, broker.bus, settings.close_s)
    per_minute = settings.requests_per_minute
    find, most = paths(gateway, coordinator), settings.bodies_bytes
    api = JsonApi(find, settings.body_limit, cancel_on_disconnect=True, bodies_limit=most)
    limit = RateLimit(per_minute, time.monotonic) if per_minute else None
    guard = Guard(api, api_keys(settings), limit, settings.trusted_proxies)
    shared = settings.shared
    server = HttpServer(guard, shared.http_host, settings.port, hosts=shared.allowed_hosts, bounds=bounds(settings))
    try:
        yield App(
            "gateway",
            [broker, publishing, recorders, routes, Periodic(LOOK_S, look, "observation"), server],
            {"routes": routes.ready, "files": has_files},
            notes={"broker": broker.check, "canaries": routes.check, "spool": publishing.check},
            drain_s=settings.grace_s + settings.drain_s + FINISH_S,
        )
    finally:
        await session.close()
        await forwarding.close()
        spool.close()


def _spool(folder: Path, limit_bytes: int) -> Spool:
    """Raises `ConfigError` where there can be none."""
    try:
        return Spool(folder, limit_bytes)
    except OSError as error:
        raise ConfigError(f"cannot spool in {folder}: {error.strerror}") from error


def bounds(settings: Settings) -> Bounds:
    """What connections may cost, and how a stop goes."""
    return Bounds(
        connections=settings.connections,
        per_address=settings.connections_per_address,
        grace_s=settings.grace_s,
        drain_s=settings.drain_s,
        header_s=settings.header_s,
        body_s=settings.body_s,
    )


def policy_engine(settings: Settings, session: ClientSession, routes: Routes) -> PolicyEngine:
    """The engine that holds the policies."""
    key = settings.engine_api_key
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    address = Address(settings.engine_url, headers, settings.engine_connect_timeout_s, settings.engine_timeout_s)
    info = EngineInfo(name=settings.engine_name)
    return PolicyEngine(HttpPost(session, NAME, address), info, routes.version)


def api_keys(settings: Settings) -> frozenset[str]:
    """The bearer tokens that agents may use, from the setting and from the file. Raises `ConfigError`."""
    given = [key.get_secret_value() for key in settings.api_keys]
    if settings.api_keys_file is None:
        return frozenset(given)
    try:
        lines = settings.api_keys_file.read_text().split()
    except OSError as error:
        raise ConfigError(f"cannot read the API keys: {error}") from error
    if not lines:
        raise ConfigError(f"{settings.api_keys_file} holds no API key: every agent would be let in")
    return frozenset([*given, *lines])


def paths(gateway: Gateway, coordinator: Coordinator | None) -> Callable[[str, str], Handler]:
    """Method and path to handler."""
    table: dict[tuple[str, str], Routed] = {
        ("POST", "/v1/chat/completions"): gateway.chat,
        ("POST", "/v1/completions"): gateway.complete,
        ("GET", "/v1/models"): gateway.models,
        ("POST", "/v1/feedback"): gateway.feedback,
    }

    def find(method: str, path: str) -> Handler:
        trajectory, plain = split_path(path)
        ended, model = _END.fullmatch(plain), _MODEL.fullmatch(plain)
        routed = table.get((method, plain))
        if ended is not None and method == "POST":
            trajectory, routed = ended["trajectory"], gateway.end
        if model is not None and method == "GET":
            routed = partial(gateway.model, model["name"])
        if coordinator is not None and coordinator.takes(method, plain):
            routed = partial(_forwarded, coordinator, plain)
        if routed is None:
            known = ended is not None or model is not None or any(plain == other for _, other in table)
            raise HttpError(405, f"{method} is not allowed here") if known else HttpError(404, f"no such path: {path}")
        return lambda request: routed(request, trajectory)

    return find


async def _forwarded(coordinator: Coordinator, path: str, request: Request, _: str | None) -> Answer:
    return await coordinator.forward(request, path)
