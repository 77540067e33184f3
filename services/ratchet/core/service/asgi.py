"""Raw ASGI for the two hot HTTP paths: bounded request bodies, JSON or event streams, errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import msgspec
import structlog

from ratchet.bus.json_values import VALUE_BYTES, count_values
from ratchet.bus.message import decode
from ratchet.core.errors import BadRequest, RatchetError
from ratchet.core.rules.access import UNAUTHENTICATED, Caller
from ratchet.core.service.http_encoding import NotUnpacked, UnknownEncoding, Unpacker
from ratchet.core.service.problems import ErrorJson, HttpError, http_error, internal_error

log = structlog.get_logger()

T = TypeVar("T")
Scope = MutableMapping[str, Any]
"""ASGI's own type: its members depend on the kind of scope."""
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

CALLER = "ratchet.caller"
"""Member of an ASGI scope: its `Caller`."""
IDENTIFY = "ratchet.identify"
"""Member of an ASGI scope: a function without arguments that asks again who the caller is. An answer may last longer
than a key."""
_JSON = (b"content-type", b"application/json")
_EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
"""Matches every body with an integer that may not fit into 64 bits: such a value can be read, but not written again."""
BODIES_LIMIT = 512 * 1024 * 1024
"""Bytes of all bodies together, and of what they decode to, unless a service sets its own limit."""
LARGE = 1024 * 1024
"""Bytes of a body whose values are counted in a thread: other requests wait for less."""
RECORD_BYTES = 256 * 1024
"""Most bytes of a body that is no conversation: a request for training, an order, an end, feedback."""
DRAINED = 8
"""A body that is too large is read, and dropped, up to so many times the limit: a client that still sends while the
connection closes would never see why."""


class Request(msgspec.Struct, frozen=True):
    """One request, its body read."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    """Lower-case names; of repeated ones the last wins."""
    body: bytes
    query: str = ""
    """The part after the path's `?`, as it was sent."""
    client: str = ""
    """Address of the peer of the connection."""
    caller: Caller = UNAUTHENTICATED
    """Who sent it, as `service.authentication` found in front of the application."""

    def header(self, name: bytes) -> str | None:
        """The value of a header, None when it is absent or empty."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value else None

    def json(self) -> Any:
        """The body as JSON. Raises `BadRequest`."""
        try:
            value = decode(self.body)
            check_numbers(self.body, value)
        except msgspec.DecodeError as error:
            raise BadRequest(f"the body is not JSON: {error}", code="invalid_json") from error
        except OverflowError as error:
            raise BadRequest("the body holds an integer of more than 64 bits", code="invalid_json") from error
        return value

    def record(self) -> dict[str, Any]:
        """The body as a JSON object that is no conversation. Raises `BadRequest`, and `HttpError` for a long one."""
        if len(self.body) > RECORD_BYTES:
            raise body_too_large(RECORD_BYTES)
        return self.json_object()

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises `BadRequest`."""
        value = self.json()
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object", code="invalid_json")
        return value  # pyright: ignore[reportUnknownVariableType]  JSON objects have string keys


class Response(msgspec.Struct, frozen=True):
    """One answer; `body` is JSON, unless the headers have another content type."""

    status: int
    body: bytes
    headers: Headers = ()


class EventStream(msgspec.Struct, frozen=True):
    """An answer in pieces (server-sent events). `events` is always started, and closed where it stands when the client
    goes away, so its `finally` always runs. The headers are sent with its first event."""

    events: AsyncGenerator[bytes, None]
    headers: Headers = ()


Answer = Response | EventStream
Handler = Callable[[Request], Awaitable[Answer]]
Find = Callable[[str, str], Handler]
"""Method and path to handler. Raises `HttpError` (404, 405)."""


def check_numbers(body: bytes, value: object) -> None:
    """Raises `OverflowError` when `value`, decoded from `body`, holds an integer that could not be written again."""
    if _LONG_NUMBER.search(body):
        msgspec.msgpack.encode(value)


def json_response(value: object, status: int = 200, headers: Headers = ()) -> Response:
    """`value` as JSON."""
    return Response(status, msgspec.json.encode(value), headers)


def problem_response(problem: HttpError) -> Response:
    """A problem as an answer."""
    return Response(problem.status, problem.json, problem.headers)


async def send_problem(send: Send, scope: Scope, problem: HttpError, error_json: ErrorJson) -> None:
    """Answer a request with a problem, in the shape that its path has."""
    await send_response(send, Response(problem.status, error_json(scope["path"], problem), problem.headers))


class _BodyMemory:
    """Bytes that the bodies of all requests together take in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], bool]]:
        """For one request: yields a function that reserves more bytes; the end of the block releases all of them."""
        taken = 0

        def take(size: int) -> bool:
            nonlocal taken
            if self._held + size > self._limit:
                return False
            self._held += size
            taken += size
            return True

        try:
            yield take
        finally:
            self._held -= taken


class JsonApi:
    """An ASGI application: reads the body within `body_limit` bytes, finds the handler, answers.

    With `cancel_on_disconnect` a handler is cancelled as soon as its client has gone. The bodies of all requests that
    are not answered yet take at most `bodies_limit` bytes.
    """

    def __init__(
        self,
        find: Find,
        body_limit: int,
        *,
        cancel_on_disconnect: bool = False,
        bodies_limit: int = BODIES_LIMIT,
        counts: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`counts`: whether the values of a path's bodies are counted; not where another process reads them."""
        self._find = find
        self._counts = counts
        self._body_limit = body_limit
        self._cancel = cancel_on_disconnect
        self._memory = _BodyMemory(bodies_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            return
        with self._memory.share() as take:
            response = await self._answer(scope, receive, take)
            if isinstance(response, EventStream):
                await _until_disconnect(_send_events(send, response), receive)
            elif response is not None:
                await send_response(send, response)

    async def _answer(self, scope: Scope, receive: Receive, take: Callable[[int], bool]) -> Answer | None:
        """None when the client went away."""
        try:
            body = await self._body(scope, receive, take)
            if body is None:
                return None
            handler = self._find(scope["method"], scope["path"])
            query = scope.get("query_string", b"").decode("latin-1")
            headers, client, caller = dict(scope["headers"]), client_of(scope), caller_of(scope)
            request = Request(scope["method"], scope["path"], headers, body, query, client, caller)
            if self._cancel:
                return await _until_disconnect(handler(request), receive)
            return await handler(request)
        except RatchetError as error:
            return problem_response(http_error(error))
        except Exception:  # the boundary: a bug must answer this request and no other
            log.exception("request failed", method=scope["method"])
            return problem_response(internal_error())

    async def _body(self, scope: Scope, receive: Receive, take: Callable[[int], bool]) -> bytes | None:
        """The whole body, unpacked, with room for what it decodes to; None when the client went away.

        Raises `HttpError` for a body that is too large or cannot be unpacked, and when memory is full; `BadRequest` for
        one that holds too many values.
        """
        chunks, size, more = list[bytes](), 0, True
        while more and size <= self._body_limit * DRAINED:
            event = await receive()
            if event["type"] != "http.request":
                return None
            chunk: bytes = event.get("body", b"")
            size += len(chunk)
            if size <= self._body_limit:
                if not take(len(chunk)):
                    raise _no_room()
                chunks.append(chunk)
            more = event.get("more_body", False)
        if size > self._body_limit:
            raise body_too_large(self._body_limit)
        encoding = next((value for name, value in scope["headers"] if name == b"content-encoding"), b"")
        body = await self._unpacked(chunks, encoding, take) if encoding else b"".join(chunks)
        if not self._counts(scope["path"]):
            return body
        values = count_values(body) if len(body) <= LARGE else await asyncio.to_thread(count_values, body)
        if not take(values * VALUE_BYTES):
            raise _no_room()
        return body

    async def _unpacked(self, packed: Sequence[bytes], encoding: bytes, take: Callable[[int], bool]) -> bytes:
        """The body that was sent packed, within the same bounds; between two parts the loop serves others.

        Raises as `_body` does.
        """
        parts, size = list[bytes](), 0
        try:
            unpacker = Unpacker(encoding)
            for chunk in packed:
                for part in unpacker.feed(chunk):
                    size += len(part)
                    if size > self._body_limit:
                        raise body_too_large(self._body_limit)
                    if not take(len(part)):
                        raise _no_room()
                    parts.append(part)
                    await asyncio.sleep(0)
            unpacker.end()
        except UnknownEncoding as error:
            message = f"{error}; send gzip, deflate, or nothing packed"
            raise HttpError(415, message, code="unsupported_media_type") from error
        except NotUnpacked as error:
            raise HttpError(400, f"the body cannot be read: {error}", code="invalid_json") from error
        return b"".join(parts)


def body_too_large(limit: int) -> HttpError:
    """The refusal of a body of more than `limit` bytes."""
    return HttpError(413, f"the body is larger than {limit} bytes", code="body_too_large")


def _no_room() -> HttpError:
    return HttpError(503, "more is being read than there is room for; try again", code="overloaded")


def caller_of(scope: Scope) -> Caller:
    """Who sent a request; `UNAUTHENTICATED`, who may do nothing, unless something in front has authenticated it."""
    return scope.get(CALLER, UNAUTHENTICATED)


def client_of(scope: Scope) -> str:
    """Address of the peer of a request's connection; empty when the server does not give it."""
    address = scope.get("client")
    return str(address[0]) if address else ""


async def _until_disconnect(work: Awaitable[T], receive: Receive) -> T | None:
    """The result of `work`, or None when the client went away first: then `work` was cancelled where it stood."""
    task, gone, over = asyncio.current_task(), asyncio.ensure_future(receive()), False
    assert task is not None  # noqa: S101 - a coroutine runs in a task

    def leave(_: object) -> None:
        if not over:
            task.cancel()

    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done() or task.uncancel() > 0:
            raise  # the server stops
        return None
    finally:
        over = True
        gone.cancel()


async def _send_events(send: Send, stream: EventStream) -> None:
    headers = [*_EVENTS, *stream.headers]
    async with aclosing(stream.events) as events:
        event = await anext(events, None)  # before anything can fail: closing a generator that never began does nothing
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while event is not None:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            event = await anext(events, None)
        await send({"type": "http.response.body", "body": b""})


async def send_response(send: Send, response: Response) -> None:
    """Answer a request with all of `response`."""
    length = (b"content-length", str(len(response.body)).encode())
    kind = () if any(name == _JSON[0] for name, _ in response.headers) else (_JSON,)
    headers = [*kind, length, *response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
