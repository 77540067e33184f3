"""The connections to one server: opened when a request needs one, kept for the next, never queued for.

    pool = HttpPool("http://127.0.0.1:8000/v1", {"content-type": "application/json"}, connect_s=2)
    reply = await pool.post("/chat/completions", body, first_byte_s=120)
    async with aclosing(reply):
        async for piece in reply.chunks(idle_s=30):
            ...

A request is sent once. It is certain that it was not sent only while no connection stands (`ConnectFailed`), or while
an idle one turns out to be closed *before* the first byte is written, in which case it goes out on another one. After
that byte, whatever happens is the caller's to judge. Redirects are answers like others; no proxy and no .netrc of the
environment count. A server with `https` is verified against the certificates of SSL_CERT_FILE or SSL_CERT_DIR, else
against certifi's.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs
import httpx

from ratchet.bus.settings import without_user
from ratchet.core.errors import ConfigError
from ratchet.gateway.engines.http_connection import ConnectFailed, Connection, HttpReply

Headers = Sequence[tuple[bytes, bytes]]
"""Names and values. A name may come more than once."""

NEXT_ADDRESS_S = 0.25
"""How long the first address of a name may take before the next one is tried beside it (RFC 8305)."""

_Info = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]
"""A line of `getaddrinfo`."""
_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of this process and its machine."""
_RESERVED = frozenset(
    {b"accept-encoding", b"connection", b"content-length", b"expect", b"host", b"te", b"trailer", b"transfer-encoding"}
    | {b"upgrade"}
)
"""The client itself says how a request is framed and what answer it can read."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_PATH = re.compile(r"(?:/[!-~]*)?")


class _Address(NamedTuple):
    host: str
    port: int
    tls: bool
    path: str
    """In front of every path."""
    headers: dict[bytes, bytes]
    """That follow from it."""


class HttpPool:
    """The connections to one base URL. Raises `ConfigError` for a URL or a header that cannot be sent.

    `headers` go with every request; `connect_s` is the longest wait for one connection: name, addresses and TLS.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, connect_s: float) -> None:
        self._address = _address(url)
        self._connect_s = connect_s
        own = {name.lower().encode(): value.encode() for name, value in headers.items()}
        for name, value in own.items():
            if (flaw := _flaw(name, value)) is not None:
                raise ConfigError(f"{without_user(url)}: {flaw}")
        self.headers: Mapping[bytes, bytes] = self._address.headers | own
        """What goes with every request, by lower-case name."""
        self._lines = {name: _line(name, value) for name, value in self.headers.items()}
        self._all_lines = b"".join(self._lines.values())
        self._tls: ssl.SSLContext | None = httpx.create_ssl_context() if self._address.tls else None
        self._numeric = _numeric(self._address.host, self._address.port)
        self._lookup: asyncio.Task[list[_Info]] | None = None
        self._idle: dict[Connection, None] = {}
        """In the order of their last use."""
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_lost = asyncio.Event()

    async def post(
        self, path: str, body: bytes | Sequence[bytes], headers: Headers = (), *, first_byte_s: float
    ) -> HttpReply:
        """The answer, whatever its status, once its head is there. Raises `ExchangeFailed`.

        `path` is below the base URL. `body` goes out as the parts follow each other. A header replaces the pool's of
        the same name; one that HTTP cannot carry, or that frames the request, raises `ValueError`. `first_byte_s`
        counts from the connection on: it limits the sending too.
        """
        parts = (body,) if isinstance(body, bytes) else body
        head = self._head("POST", path, sum(map(len, parts)), headers)
        connection = self._kept() or await self._connect()
        return await connection.exchange(head, parts, first_byte_s)

    async def get(self, path: str, *, first_byte_s: float) -> HttpReply:
        """The same without a body."""
        connection = self._kept() or await self._connect()
        return await connection.exchange(self._head("GET", path, 0, ()), (b"",), first_byte_s)

    async def close(self) -> None:
        """Close all connections: what is under way on them breaks off."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._open):
            connection.abort()
        while self._open:
            self._all_lost.clear()
            await self._all_lost.wait()

    def _head(self, method: str, path: str, size: int, headers: Headers) -> bytes:
        if not _PATH.fullmatch(path):
            raise ValueError("a path that HTTP cannot carry")
        lines = self._all_lines
        if headers:
            names = {name.lower() for name, _ in headers}
            lines = b"".join([line for name, line in self._lines.items() if name not in names])
            for name, value in headers:
                if (flaw := _flaw(name, value)) is not None:
                    raise ValueError(flaw)
                lines += _line(name, value)
        first = f"{method} {self._address.path}{path} HTTP/1.1\r\ncontent-length: {size}\r\n"
        return b"%b%b\r\n" % (first.encode(), lines)

    def _kept(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if now < connection.idle_until and connection.usable():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        host, tls = self._address.host, self._tls
        try:
            async with asyncio.timeout(self._connect_s):
                infos = self._numeric or await self._look_up()
                connected = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=NEXT_ADDRESS_S)
                _, connection = await loop.create_connection(
                    lambda: Connection(self._keep, self._forget),
                    sock=connected,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {self._connect_s:g} s", timed_out=True) from error
        except OSError as error:
            raise ConnectFailed(f"no connection: {error}", os_error=error, own_limit=_own_limit(error)) from error
        if self._closed or connection.closing:
            connection.abort()
            raise ConnectFailed("the connection was closed before anything was sent")
        self._open.add(connection)
        return connection

    async def _look_up(self) -> list[_Info]:
        """The addresses of the host: one look-up for all who wait, for each takes a thread."""
        if self._lookup is None:
            loop, address = asyncio.get_running_loop(), self._address
            asked = loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self._lookup = asyncio.ensure_future(asked)
            self._lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(self._lookup)

    def _looked_up(self, task: asyncio.Task[list[_Info]]) -> None:
        self._lookup = None
        if not task.cancelled():
            task.exception()  # every caller may have given up before its end

    def _keep(self, connection: Connection, life_s: float) -> None:
        if self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_until = loop.time() + life_s
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = loop.call_at(connection.idle_until, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in [idle for idle in self._idle if idle.idle_until <= loop.time()]:
            del self._idle[connection]
            connection.abort()
        earliest = min((connection.idle_until for connection in self._idle), default=None)
        self._sweeper = None if earliest is None else loop.call_at(earliest, self._sweep)

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        if not self._open:
            self._all_lost.set()


def _numeric(host: str, port: int) -> list[_Info]:
    """The address that the host already is; nothing for a name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def _address(url: str) -> _Address:
    """Raises `ConfigError` for what is no base URL of a server."""
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").encode("idna").decode()
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise ConfigError(f"{without_user(url)} is not a URL: write http://host:port/path") from error
    path = parts.path.rstrip("/")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not _PATH.fullmatch(path):
        raise ConfigError(f"{without_user(url)} is not the base URL of a server: http://HOST:PORT/PATH or https://...")
    named = f"[{host}]" if ":" in host else host
    headers = {b"host": (named if port == (443 if tls else 80) else f"{named}:{port}").encode()}
    headers[b"accept-encoding"] = b"identity"
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers[b"authorization"] = b"Basic " + base64.b64encode(user.encode())
    return _Address(host, port, tls, path, headers)


def _flaw(name: bytes, value: bytes) -> str | None:
    """Why a header cannot be sent; without its value, which may be a key."""
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        return f"a header that HTTP cannot carry: {name[:40]!r}"
    if name.lower() in _RESERVED:
        return f"a header that the client itself sets: {name[:40]!r}"
    return None


def _line(name: bytes, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name, value)


def _own_limit(error: OSError) -> bool:
    """Whether this process or its machine is the cause. A look-up of a name that found no file free does not say so."""
    if isinstance(error, socket.gaierror):
        try:
            socket.socket().close()
        except OSError as cause:
            return cause.errno in _OUR_LIMITS
    return error.errno in _OUR_LIMITS
