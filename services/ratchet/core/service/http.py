"""An HTTP server as a component: uvicorn in the service's own event loop, with bounds on the cost of connections."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ratchet.bus.tasks import end
from ratchet.core.errors import ConfigError
from ratchet.core.service.asgi import AsgiApp, Receive, Scope, Send, send_problem
from ratchet.core.service.problems import ErrorJson, HttpError, as_openai
from ratchet.core.service.same_site import SameSite, Sites
from ratchet.core.service.tls import ServerCertificate

HEADER_S = 10.0
"""How long a client may take for its request's headers."""
IDLE_S = 75
"""How long a connection may wait for its next request: longer than clients keep an idle one (httpx 5 s, load balancers
60 s), so that the client closes it first. A request that is on its way while the server closes meets a reset. Where a
connection is one too many, the one that has waited longest makes room for it."""
BODY_S = 60.0
"""How long a client may take for its request's body."""
READ_S = 60.0
"""How long a client may take for `TAKEN` bytes of an answer that waits for it, or for its rest."""
TAKEN = 64 * 1024
HEAD_BYTES = 64 * 1024
"""Most bytes of a request beside its body: its line, headers, trailers, and the framing of its chunks beyond their own
size."""
HEAD_TOO_LARGE = f"more than {HEAD_BYTES} bytes that are no body"
BODY_BYTES = 64 * 1024 * 1024
"""Most bytes of a body, whatever limit the application has."""
PIPELINED = 8
"""Requests that may wait on a connection for the answers to those before them."""
SPARE_FILES = 64
"""Open files besides connections: logs, the spool, the broker."""
NO_SITES = Sites()
LEFT_S = 2.0
"""How long calls that were cancelled may take to answer so."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that all connections together may cost, the times of a stop, and how the server answers what is beyond
    them."""

    connections: int = 0
    """Most open connections; 0: as many as leave each of them a second file for the call that it makes."""
    per_address: int = 0
    """Most open connections of one address; 0: half of all."""
    grace_s: float = 0.0
    """How long a stop still accepts connections: load balancers must first see that the service is not ready."""
    drain_s: float = 3.0
    """How long calls may go on after that."""
    header_s: float = HEADER_S
    body_s: float = BODY_S
    read_s: float = READ_S
    idle_s: int = IDLE_S
    error_json: ErrorJson = as_openai
    """Body of an error that the server answers before the application does."""


@dataclass(slots=True)
class _Gate:
    """Counts open connections, by address."""

    limit: int
    per_address: int
    bounds: Bounds
    open: Counter[str] = field(default_factory=Counter[str])
    idle: dict[_Connection, str] = field(default_factory=dict["_Connection", str])
    """Connections that wait for their next request, with their address; first those that have waited longest."""

    def enter(self, address: str) -> bool:
        """Count one more connection of the address; False when it is one too many, and no idle one can make room."""
        if self.open[address] >= self.per_address:
            self._make_room(next((idle for idle, its in self.idle.items() if its == address), None))
        elif self.open.total() >= self.limit:
            self._make_room(next(iter(self.idle), None))
        if self.open.total() >= self.limit or self.open[address] >= self.per_address:
            return False
        self.open[address] += 1
        return True

    def _make_room(self, idle: _Connection | None) -> None:
        if idle is not None:
            idle.give_way()

    def leave(self, address: str) -> None:
        """A connection ended."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]


class _Config(uvicorn.Config):
    """uvicorn's settings, and the gate that connections pass."""

    gate: _Gate


class _Connection(HttpToolsProtocol):
    """A connection with a deadline and a bound for each of headers, body, and taking an answer."""

    config: _Config
    url = b""
    """Target of the request that is being read, as far as it has come."""
    _entered: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _overhead = 0
    """Bytes of the request that is being read, without its body; those that follow it in the same segment count too."""
    _head = 0
    """Bytes of its target, headers and trailers: all of a request may come in one segment."""
    _body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.config.gate.enter(address):
            self._refuse(503, "too many connections", "too_many_connections")
            return
        self._entered = address
        # Any byte that the client has not taken pauses writing. At 0 a transport with TLS would pause for ever.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)
        self._due_in(self.config.gate.bounds.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._due_in(None)
        self.resume_writing()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Make room for another connection."""
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        self.config.gate.idle.pop(self, None)
        if self._entered is not None:
            self.config.gate.leave(self._entered)
            self._entered = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Be idle, unless a request is being read or answered."""
        if self._entered is not None and self._deadline is None and self.cycle.response_complete:
            self.config.gate.idle[self] = self._entered

    def data_received(self, data: bytes) -> None:
        if self._entered is None or self.transport.is_closing():
            return
        self.config.gate.idle.pop(self, None)
        # Without a deadline a request has come, so there is a cycle. Empty lines begin no request, but make uvicorn
        # wait for one.
        if self._deadline is None and self.cycle.response_complete:
            self._due_in(self.config.gate.bounds.header_s)
        self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._overhead > HEAD_BYTES + self._body:
            self._refuse(431, HEAD_TOO_LARGE, "headers_too_large")
        elif self._body > BODY_BYTES:
            self._refuse(413, f"the body is larger than {BODY_BYTES} bytes", "body_too_large")
        elif len(self.pipeline) > PIPELINED:
            self.transport.abort()  # an answer may have begun: no other can be sent

    def on_message_begin(self) -> None:
        if self._deadline is None:
            self._due_in(self.config.gate.bounds.header_s)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            raise ValueError(HEAD_TOO_LARGE)  # ends the parsing: `send_400_response` answers

    def send_400_response(self, msg: str) -> None:
        if self._head > HEAD_BYTES:
            self._refuse(431, HEAD_TOO_LARGE, "headers_too_large")
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._due_in(self.config.gate.bounds.body_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead -= len(body)
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._due_in(None)
        self._overhead = self._head = self._body = 0
        super().on_message_complete()
        self._wait_for_next()  # where it was answered before its end

    def pause_writing(self) -> None:
        self._watch_unread(self.transport.get_write_buffer_size())
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _watch_unread(self, left: int) -> None:
        """`left`: bytes that the client has not taken."""

        def check() -> None:
            now = self.transport.get_write_buffer_size()
            if now > left - TAKEN:
                self.transport.abort()
            else:
                self._watch_unread(now)

        self._unread = self.loop.call_later(self.config.gate.bounds.read_s, check)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Send an error unless another answer has begun, and close."""
        self._due_in(None)
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request's headers
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        if begun or self.pipeline:  # the error would stand inside another answer
            self.transport.abort()
            return
        if cycle is not None:  # the handler sees that its client has gone
            cycle.disconnected = True
            cycle.message_event.set()
        path = self.url.partition(b"?")[0].decode("latin-1")
        body = self.config.gate.bounds.error_json(path, HttpError(status, message, code=code))
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

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

    `sites`: whose pages may use it; `shared`: other processes of ours listen on the same port.
    """

    def __init__(  # noqa: PLR0913 - keywords, each with a default
        self,
        app: AsgiApp | Any,
        host: str,
        port: int,
        *,
        sites: Sites = NO_SITES,
        bounds: Bounds | None = None,
        shared: bool = False,
        tls_file: Path | None = None,
    ) -> None:
        """Raises `ConfigError` also for a `tls_file` that cannot be read; None: it speaks plain HTTP."""
        self._certificate = certificate = ServerCertificate(tls_file) if tls_file is not None else None
        bounds = bounds or Bounds()
        guarded: AsgiApp = SameSite(app, sites, bounds.error_json)
        if sites.origins:
            # Browsers learn that pages of these sites may send requests and read the answers, with all their headers:
            # limits and request ids of providers too. No service knows cookies, with which `*` would mean nothing.
            methods = ("GET", "POST", "DELETE")
            guarded = CORSMiddleware(guarded, sites.origins, methods, allow_headers=["*"], expose_headers=["*"])
        self._grace_s = bounds.grace_s
        self._stopped = False
        self._socket = bound(host, port, shared=shared)
        self.port: int = self._socket.getsockname()[1]
        config = _Config(
            _AnsweringAtTheEnd(guarded, bounds.error_json),
            http=_Connection,
            log_config=None,  # its loggers write as all others do: see `logs`
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",  # an upgraded connection would leave the bounds behind
            proxy_headers=False,  # any client can send them: a setting of the service says whose count
            timeout_keep_alive=bounds.idle_s,
            timeout_graceful_shutdown=max(1, round(bounds.drain_s)),
            ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
        )
        # Each connection may need a second file for the call that it makes.
        limit = bounds.connections or max(8, (min(_most_files(), 65_536) - SPARE_FILES) // 2)
        config.gate = _Gate(limit, bounds.per_address or max(1, limit // 2), bounds)
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve until stopped."""
        following = asyncio.create_task(self._certificate.follow()) if self._certificate is not None else None
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            if following is not None:
                await end(following)
        if self._server.server_state.tasks:  # cancelled after the deadline
            await asyncio.wait(self._server.server_state.tasks, timeout=LEFT_S)

    async def stop(self) -> None:
        """Accept connections for the grace, then no more, and finish the open requests."""
        await asyncio.sleep(self._grace_s)
        self._server.should_exit = True


class _AnsweringAtTheEnd:
    """Answers a request that the end of the server cancels, in the shape of every other error of its path."""

    def __init__(self, app: AsgiApp, error_json: ErrorJson) -> None:
        self._app = app
        self._error_json = error_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(event: Any) -> None:
            nonlocal begun
            begun = True
            await send(event)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:  # Starlette raises it when a client goes away before its body is there
            return
        except asyncio.CancelledError:
            if not begun:
                stopping = HttpError(503, "the service stops", code="stopping")
                await send_problem(send, scope, stopping, self._error_json)


def _most_files() -> int:
    """That this process may hold open."""
    import resource  # noqa: PLC0415 - Windows has none, where the command line imports this file too

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that holds a port; `shared`: together with others that were bound so. Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
