"""HTTP requests to other programs of the system: typed answers, errors of the tree, a limit to every wait.

    coordinator = ApiClient(Peer("the coordinator", "http://127.0.0.1:8081"))
    jobs = coordinator.ask("GET", "/v1/jobs", JobsOut, query={"role": "support"})

An `https://` peer is verified against the certificates of SSL_CERT_FILE or SSL_CERT_DIR, else against certifi's.
Nothing else of the environment counts: no proxy, no .netrc. A redirect is not followed, and a compressed answer not
unpacked: a few of its bytes could be a gigabyte.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from ratchet.bus.message import decode
from ratchet.bus.settings import without_user
from ratchet.core.contract.http.answers import ErrorOut
from ratchet.core.errors import ConfigError, RatchetError, Unavailable
from ratchet.core.service.problems import error_class

T = TypeVar("T")
Query = Mapping[str, str | int | float | None]
"""Members that are None are left out."""

Headers = Mapping[str, str | bytes]

ANSWER_BYTES = 64 * 1024 * 1024
"""Most bytes of an answer: the largest list of jobs or prompts has a few."""
IDLE_S = 4.0
"""How long an idle connection is kept."""
QUOTED = 500
"""Most characters of another program's words in an error."""
WRONG_REQUEST = frozenset({400, 413, 422})
"""Statuses of a request that a model does not take: those of a wrong key or name say nothing about the request."""
TIMEOUT = "timeout"
"""Code of the error of a peer that took too long."""
TOO_LARGE = "answer_too_large"
"""Code of the error of a peer that sent more than it may."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The program that requests go to."""

    name: str
    """What errors call it, such as `the coordinator`."""
    url: str
    """In front of every path."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 30.0
    """Longest wait for a whole answer, from the look-up of the name on, unless a request sets its own."""
    errors: Mapping[int, type[RatchetError]] = field(default_factory=dict[int, type[RatchetError]])
    """The errors that its statuses stand for, where they differ from those of `problems`."""
    refusal: str = "{reason}"
    """How a refusal reads; it may name the `{status}`."""
    quotable: bool = True
    """Whether its words may stand in `Unavailable`, which is logged: those of an engine may quote a prompt or a key."""
    connect_s: float | None = None
    """Longest wait for a connection, where that is to end sooner: then its error says so."""
    answer_bytes: int = ANSWER_BYTES
    """Most bytes of an answer."""
    is_ours: bool = False
    """Whether its errors are all in our shape: any other is of something between, and stands for `Unavailable`."""


class Reply(NamedTuple):
    """An answer as it came."""

    status: int
    content: bytes
    headers: Mapping[str, str]


class _Client:
    """The parts that both clients share."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._options: dict[str, Any] = {  # `Any`: httpx's parameters have their own types
            "base_url": peer.url.rstrip("/"),
            "headers": {**peer.headers, "accept-encoding": "identity"},
            "timeout": self._timeout(peer.timeout_s),
            # Reading the certificates takes a while: a peer without TLS gets a context that trusts none.
            "verify": httpx.create_ssl_context()
            if peer.url.lower().startswith("https:")
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            "trust_env": False,
            # Others close an idle connection after 5 s (uvicorn): it is closed here before a request meets that.
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_S),
        }

    def _timeout(self, seconds: float) -> httpx.Timeout:
        connect_s = self.peer.connect_s
        return httpx.Timeout(seconds, connect=seconds if connect_s is None else min(connect_s, seconds))

    def _request(
        self,
        body: object,
        query: Query | None,
        timeout_s: float | None,
        headers: Headers | None = None,
    ) -> dict[str, Any]:
        """The parameters of a request; `bytes` are a body as it is."""
        request: dict[str, Any] = {"timeout": self._timeout(timeout_s)} if timeout_s is not None else {}
        given: dict[str, str | bytes] = dict(headers or {})
        request["headers"] = given
        if query is not None:
            request["params"] = {name: value for name, value in query.items() if value is not None}
        if body is not None:
            request["content"] = body if isinstance(body, bytes) else msgspec.json.encode(body)
            given.setdefault("content-type", "application/json")
        return request

    async def _exchange(
        self,
        http: httpx.AsyncClient,
        method: str,
        path: str,
        timeout_s: float | None,
        request: Mapping[str, Any],
    ) -> Reply:
        """The answer as it comes, whatever its status. Raises `Unavailable` when the peer does not answer.

        `request`: the other parameters of httpx.
        """
        try:
            async with (
                asyncio.timeout(timeout_s or self.peer.timeout_s),
                http.stream(method, path, **request) as answer,
            ):
                return Reply(answer.status_code, await self._content(answer), answer.headers)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise self._unanswered(error) from error

    async def _content(self, answer: httpx.Response) -> bytes:
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise Unavailable(f"{self.peer.name} answers in an encoding that was not asked for: {encoding[:QUOTED]}")
        content = bytearray()
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > self.peer.answer_bytes:
                why = f"{self.peer.name} answers with more than {self.peer.answer_bytes} bytes"
                raise Unavailable(why, code=TOO_LARGE)
        return bytes(content)

    def content_of(self, reply: Reply) -> bytes:
        """The content of an answer. An error status raises the error that it stands for."""
        if not 200 <= reply.status < 300:
            raise error_of(self.peer, reply)
        return reply.content

    def _read(self, reply: Reply, kind: type[T]) -> T:
        content = self.content_of(reply)
        try:
            return decode(content, kind)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the answer of {self.peer.name} cannot be read: {error}") from error

    def _unanswered(self, error: Exception) -> Unavailable:
        """httpx's own words are shown for a failed connection only: others of its messages may quote an answer."""
        why = str(error) if isinstance(error, httpx.ConnectError) and str(error) else type(error).__name__
        code = TIMEOUT if isinstance(error, (httpx.TimeoutException, TimeoutError)) else None
        return Unavailable(f"{self.peer.name} does not answer at {without_user(self.peer.url)} ({why})", code=code)


class ApiClient(_Client):
    """For programs that wait for each answer.

    A request has a thread, an event loop and a connection of its own: only a loop ends a wait in time whatever the peer
    sends, and the caller's thread may run one already.
    """

    def __init__(self, peer: Peer, transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(peer)
        self._transport = transport

    def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: object = None,
        query: Query | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """The answer as `kind`. Raises `Unavailable`, or the error that the answer's status stands for."""
        future: Future[Reply] = Future()

        async def exchange() -> None:
            try:
                async with httpx.AsyncClient(transport=self._transport, **self._options) as http:
                    request = self._request(body, query, timeout_s)
                    reply = await self._exchange(http, method, path, timeout_s, request)
            except BaseException as error:  # noqa: BLE001 - the end of the thread: its caller waits, and raises it
                future.set_exception(error)
            else:
                future.set_result(reply)

        # The thread is not waited for: asyncio ends it only when a look-up of the name has ended, however late.
        threading.Thread(target=asyncio.run, args=(exchange(),), name=f"ask {self.peer.name}", daemon=True).start()
        return self._read(future.result(), kind)


class AsyncApiClient(_Client):
    """For services."""

    def __init__(self, peer: Peer, transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(peer)
        self._http = httpx.AsyncClient(transport=transport, **self._options)

    async def __aenter__(self) -> AsyncApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: object = None,
        query: Query | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """The answer as `kind`. Raises `Unavailable`, or the error that the answer's status stands for."""
        return self._read(await self.exchange(method, path, body=body, query=query, timeout_s=timeout_s), kind)

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Query | None = None,
        timeout_s: float | None = None,
        headers: Headers | None = None,
    ) -> Reply:
        """The answer as it comes, whatever its status. Raises `Unavailable` when the peer does not answer.

        `headers`: besides those of the peer, or instead of them.
        """
        request = self._request(body, query, timeout_s, headers)
        return await self._exchange(self._http, method, path, timeout_s, request)

    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        timeout_s: float | None = None,
        headers: Headers | None = None,
    ) -> Stream:
        """The head of an answer, whatever its status; the caller reads its content as it comes, or closes it.

        `timeout_s`: longest wait for the head, and for each part. Raises `Unavailable` as `exchange` does.
        """
        request = self._http.build_request(method, path, **self._request(body, None, timeout_s, headers))
        try:
            async with asyncio.timeout(timeout_s or self.peer.timeout_s):
                answer = await self._http.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise self._unanswered(error) from error
        return Stream(answer, self._content, self._unanswered)


class Stream:
    """An answer whose head is there. Its content is read once, by `whole` or `parts`, or not at all: `close`."""

    def __init__(
        self,
        answer: httpx.Response,
        content: Callable[[httpx.Response], Awaitable[bytes]],
        unanswered: Callable[[Exception], Unavailable],
    ) -> None:
        self.status = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer
        self._content = content
        self._unanswered = unanswered

    async def close(self) -> None:
        """Read no content."""
        await self._answer.aclose()

    async def whole(self) -> bytes:
        """All of the content. Raises `Unavailable` where it breaks off, and for more than the peer may send."""
        try:
            return await self._content(self._answer)
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        finally:
            await self._answer.aclose()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The content as it comes. Raises `Unavailable` where it breaks off; closing it ends the peer's answer too."""
        try:
            async for part in self._answer.aiter_raw():
                yield part
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        finally:
            await self._answer.aclose()


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries an API key; without a key none. Raises `ConfigError` for what no header can hold."""
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("an API key is of printable ASCII characters without blanks, and this one is not")
    return {"authorization": f"Bearer {key}"} if key else {}


class _Blame(msgspec.Struct):
    """The error in a body. Foreign servers leave members out, or give a number as the code."""

    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct):
    """The one shape of errors, and those in which foreign servers put one line."""

    error: _Blame | str | None = None
    detail: str | None = None
    message: str | None = None


def is_error(content: bytes) -> bool:
    """Whether a body is an error in our shape."""
    try:
        decode(content, ErrorOut)
    except msgspec.DecodeError:
        return False
    return True


def error_of(peer: Peer, reply: Reply) -> RatchetError:
    """The error that an answer with an error status stands for."""
    try:
        body = decode(reply.content, _ErrorBody)
        blame = (
            body.error if isinstance(body.error, _Blame) else _Blame(body.error or body.detail or body.message or "")
        )
    except msgspec.DecodeError:
        blame = _Blame(reply.content.decode(errors="replace").strip())
    words = blame.message[:QUOTED]
    code = blame.code if isinstance(blame.code, str) else None
    kind = peer.errors.get(reply.status) or error_class(reply.status, code)
    if peer.is_ours and not is_error(reply.content):
        kind = Unavailable
    if issubclass(kind, Unavailable):
        why = f": {words or 'no reason given'}" if peer.quotable else ""
        error = kind(f"{peer.name} answered {reply.status}{why}")
    else:
        reason = words or f"{peer.name} answered {reply.status}"
        error = kind(peer.refusal.format(status=reply.status, reason=reason), param=blame.param)
    error.code = code or error.code
    return error
