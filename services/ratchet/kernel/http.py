"""An HTTP server as a component: uvicorn in the service's own event loop, with bounds on what connections may cost."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ratchet.kernel.asgi import HttpError, Receive, Scope, Send, problem_response, send_response
from ratchet.kernel.errors import ConfigError
from ratchet.kernel.same_site import AsgiApp, SameSite

HEADER_S = 10.0
"""How long a client may take until its request's headers are there; between requests uvicorn closes after 5 s."""
BODY_S = 60.0
"""How long a client may take for its request's body."""
READ_S = 60.0
"""How long a client may take none of an answer that waits for it."""
SPARE_FILES = 64
"""Files that are no connections: logs, the spool, the broker."""
LEFT_S = 2.0
"""How long calls that were broken off may take to say so."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all connections together may cost, and how a stop goes."""

    connections: int = 0
    """Most open connections; 0: as many as leave each of them a second file, for what its call opens."""
    per_address: int = 0
    """Most open connections of one address; 0: half of all."""
    grace_s: float = 0.0
    """How long a stop still lets new connections in: whoever sends them must first see that it is not ready."""
    drain_s: float = 3.0
    """How long calls may go on after that."""
    header_s: float = HEADER_S
    body_s: float = BODY_S


@dataclass(slots=True)
class _Gate:
    """Who is connected."""

    limit: int
    per_address: int
    header_s: float
    body_s: float
    open: Counter[str] = field(default_factory=Counter[str])

    def enter(self, address: str) -> bool:
        """Whether one more connection of the address may be opened, which is then counted."""
        if self.open.total() >= self.limit or self.open[address] >= self.per_address:
            return False
        self.open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection has ended."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]


class _Config(uvicorn.Config):
    """uvicorn's settings, and who may connect."""

    gate: _Gate


class _Connection(HttpToolsProtocol):
    """A connection that has deadlines: for headers, for the body, and for taking an answer."""

    config: _Config
    _entered: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.config.gate.enter(address):
            transport.write(_FULL)
            transport.close()
            return
        self._entered = address
        self._due_in(self.config.gate.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entered is not None:
            self.config.gate.leave(self._entered)
            self._entered = None
        self._due_in(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._entered is None:
            return
        # Without a deadline one request has come, so there is a cycle. Empty lines begin no request, and yet make
        # uvicorn wait for one.
        if self._deadline is None and self.cycle.response_complete:
            self._due_in(self.config.gate.header_s)
        super().data_received(data)

    def on_message_begin(self) -> None:
        if self._deadline is None:
            self._due_in(self.config.gate.header_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._due_in(self.config.gate.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._due_in(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._unread = self.loop.call_later(READ_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _due_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _Server(uvicorn.Server):
    """Signals belong to the runtime, not to the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` on `host:port`. The port is bound at once: a taken one raises `ConfigError`.

    `hosts`: names under which pages may know it, see `SameSite`.
    """

    def __init__(
        self, app: AsgiApp | Any, host: str, port: int, *, hosts: Sequence[str] = (), bounds: Bounds | None = None
    ) -> None:
        bounds = bounds or Bounds()
        self._grace_s = bounds.grace_s
        self._stopped = False
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = _Config(
            _Parting(SameSite(app, hosts)),
            http=_Connection,
            log_config=None,  # its loggers write as all others do: see `logs`
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # anybody can send them: whose word counts is the service's setting
            timeout_graceful_shutdown=max(1, round(bounds.drain_s)),
        )
        limit = bounds.connections or _affordable()
        config.gate = _Gate(limit, bounds.per_address or max(1, limit // 2), bounds.header_s, bounds.body_s)
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve until stopped."""
        await self._server.serve(sockets=[self._socket])
        if self._server.server_state.tasks:  # broken off after the deadline
            await asyncio.wait(self._server.server_state.tasks, timeout=LEFT_S)

    async def stop(self) -> None:
        """Let in who comes within the grace, then take no new connections and finish the open requests."""
        await asyncio.sleep(self._grace_s)
        self._server.should_exit = True


class _Parting:
    """A request that the end of the server breaks off is told so, in the shape of every other error."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(event: Any) -> None:
            nonlocal begun
            begun = True
            await send(event)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not begun:
                await send_response(send, problem_response(HttpError(503, "the service stops", code="stopping")))


def _affordable() -> int:
    """How many connections the process can have: each may need a second file for what its call opens."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (min(files, 65_536) - SPARE_FILES) // 2)


_BODY = problem_response(HttpError(503, "too many connections", code="too_many_connections")).body
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: " + str(len(_BODY)).encode() + b"\r\n\r\n" + _BODY
)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
