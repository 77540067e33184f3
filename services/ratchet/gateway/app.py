"""Composition root of the gateway.

agents ── HTTP ── JsonApi ── paths ── handlers.Gateway ── HttpEngine ── engine
                                         │       └─ kv_routes.Routes ── KV `policies`, file
                                         └─ Recorder (redacts) ── Outbox ── JetStream, or spool
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from ratchet.gateway.domain.chat import split_path
from ratchet.gateway.domain.conversations import Conversations
from ratchet.gateway.handlers import Gateway
from ratchet.gateway.http_engine import HttpEngine, open_session
from ratchet.gateway.kv_routes import Routes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.settings import Settings
from ratchet.kernel.asgi import Handler, HttpError, JsonApi, Request, Response
from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.http import HttpServer
from ratchet.kernel.outbox import Outbox
from ratchet.kernel.redaction import Redactor
from ratchet.kernel.runtime import App
from ratchet.kernel.spool import Spool
from ratchet.messages.state import POLICIES, PolicyVersion, Route
from ratchet.messages.turn import EngineInfo

_END = re.compile(r"/v1/trajectories/(?P<trajectory>[^/]+)/end")

Routed = Callable[[Request, str | None], Awaitable[Response]]


class Publishing:
    """The outbox as a component: its bus is already connected."""

    def __init__(self, outbox: Outbox, bus: Bus, close_s: float) -> None:
        self._outbox = outbox
        self._bus = bus
        self._close_s = close_s

    async def run(self) -> None:
        """Publish until stopped."""
        await self._outbox.run(self._connected)

    async def stop(self) -> None:
        """Publish what is queued, within the deadline; the rest stays in the spool."""
        await self._outbox.flush(self._close_s)
        await self._outbox.stop()

    async def check(self) -> str | None:
        """Readiness: how many events were lost because neither memory nor disk had room."""
        lost = self._outbox.stats.overflowed
        return f"{lost} events lost: the queue or the spool on disk was full" if lost else None

    async def _connected(self) -> Bus:
        return self._bus


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect, and put the routes together."""
    contracts = Contracts.load()
    bus = await Bus.connect(settings.kernel, name="gateway", contracts=contracts)
    folder = settings.kernel.data_dir / "gateway"
    spool = Spool(folder / "spool", settings.spool_bytes)
    outbox = Outbox(contracts, "gateway", spool, queue_limit=settings.queue_limit)
    session = open_session(settings.engine_timeout_s)
    routes = Routes(
        bus.bucket(POLICIES, Route),
        bus.bucket(POLICIES, PolicyVersion),
        folder / "routes.json",
        lease_s=settings.lease_s,
        monotonic=time.monotonic,
    )
    gateway = Gateway(
        routes=routes,
        engine=HttpEngine(session, settings.engine_url),
        engine_info=EngineInfo(name=settings.engine_name),
        recorder=Recorder(outbox, Redactor()),
        conversations=Conversations(settings.conversations),
        contracts=contracts,
        user_key=settings.user_key.get_secret_value() if settings.user_key else None,
        now=bus.now,
    )
    keys = frozenset(key.get_secret_value() for key in settings.api_keys)
    publishing = Publishing(outbox, bus, settings.close_s)
    server = HttpServer(JsonApi(paths(gateway, keys), settings.body_limit), settings.kernel.http_host, settings.port)
    try:
        yield App(
            "gateway",
            [publishing, routes, server],
            {"broker": bus.check, "canary": routes.check, "spool": publishing.check},
        )
    finally:
        await session.close()
        await bus.close()
        spool.close()


def paths(gateway: Gateway, keys: frozenset[str]) -> Callable[[str, str], Handler]:
    """Method and path to handler, behind the API keys if there are any."""
    table: dict[tuple[str, str], Routed] = {
        ("POST", "/v1/chat/completions"): gateway.chat,
        ("GET", "/v1/models"): gateway.models,
        ("POST", "/v1/feedback"): gateway.feedback,
    }

    def find(method: str, path: str) -> Handler:
        trajectory, plain = split_path(path)
        ended = _END.fullmatch(plain)
        routed = table.get((method, plain))
        if ended is not None and method == "POST":
            trajectory, routed = ended["trajectory"], gateway.end
        if routed is None:
            known = ended is not None or any(plain == other for _, other in table)
            raise HttpError(405, f"{method} is not allowed here") if known else HttpError(404, f"no such path: {path}")
        return partial(_guarded, keys, routed, trajectory)

    return find


async def _guarded(keys: frozenset[str], routed: Routed, trajectory: str | None, request: Request) -> Response:
    """Ask for an API key where the gateway has some."""
    given = (request.header(b"authorization") or "").removeprefix("Bearer ")
    if keys and given not in keys:
        raise HttpError(401, "incorrect API key", kind="authentication_error", code="invalid_api_key")
    return await routed(request, trajectory)
