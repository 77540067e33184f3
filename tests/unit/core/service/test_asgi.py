"""The raw ASGI server: bodies within a limit, errors in OpenAI's shape, handlers that end with their client."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from ratchet.core.errors import (
    BadRequest,
    BusUnavailable,
    Conflict,
    DigestMismatch,
    Forbidden,
    InvalidMessage,
    MissingExtra,
    NotFound,
    Rejected,
    Unreadable,
    WrongState,
)
from ratchet.core.service.asgi import EventStream, Handler, JsonApi, Request, Response, json_response
from ratchet.core.service.problems import HttpError


class Call:
    """One request to an app, and what it sent back."""

    def __init__(self, chunks: Sequence[bytes], *, stays: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._chunks = list(chunks)
        if not stays:
            self.gone.set()

    async def receive(self) -> dict[str, Any]:
        if self._chunks:
            chunk = self._chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    @property
    def unread(self) -> int:
        """Chunks of the body that the app has not read."""
        return len(self._chunks)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.sent[1]["body"])


def scope(*headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/x", "headers": list(headers), **more}


async def called(
    handler: Handler, chunks: Sequence[bytes] | Call = (b"{}",), asked: dict[str, Any] | None = None, **options: bool
) -> Call:
    call = chunks if isinstance(chunks, Call) else Call(chunks)
    asked = asked or scope((b"x-one", b"1"), (b"empty", b""))
    await JsonApi(lambda _, __: handler, 100, **options)(asked, call.receive, call.send)
    return call


async def echo(request: Request) -> Response:
    return json_response({"body": request.json(), "one": request.header(b"x-one"), "empty": request.header(b"empty")})


def raising(error: Exception) -> Handler:
    async def handler(_: Request) -> Response:
        raise error

    return handler


async def test_a_body_in_pieces_is_put_together() -> None:
    call = await called(echo, [b'{"a":', b" 1", b"}"])
    assert (call.status, call.json) == (200, {"body": {"a": 1}, "one": "1", "empty": None})


@pytest.mark.parametrize("chunks", [[b"x" * 101], [b"x" * 60, b"x" * 60, b"x"]])
async def test_a_body_over_the_limit_is_refused(chunks: list[bytes]) -> None:
    call = await called(echo, chunks)
    assert (call.status, call.json["error"]["code"]) == (413, "body_too_large")


async def test_bodies_that_are_not_answered_yet_have_a_bound_together() -> None:
    at_work, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        at_work.set()
        await may_answer.wait()
        return json_response({})

    api = JsonApi(lambda _, __: slow, 100, bodies_limit=100)

    async def asked(chunks: Sequence[bytes]) -> Call:
        call = Call(chunks)
        await api(scope(), call.receive, call.send)
        return call

    first = asyncio.create_task(asked([b"x" * 30, b"x" * 30]))
    await at_work.wait()
    for chunks in ([b"x" * 60], [b"x" * 30, b"x" * 30]):
        refused = await asked(chunks)
        assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
    may_answer.set()
    assert (await first).status == 200
    assert (await asked([b"x" * 60])).status == 200


async def size_of(request: Request) -> Response:
    return json_response(len(request.body))


@pytest.mark.parametrize("encoding", [b"gzip", b"x-gzip", b"deflate", b"identity"])
@pytest.mark.parametrize("chunks", [[], [b""], [b"", b""]])
async def test_a_packed_body_may_be_empty(encoding: bytes, chunks: list[bytes]) -> None:
    call = await called(size_of, chunks or [b""], scope((b"content-encoding", encoding)))
    assert (call.status, call.json) == (200, 0)


@pytest.mark.parametrize(
    "packed", [zlib.compress(b"{}"), zlib.compress(b"{}", wbits=-15), gzip.compress(b"{}", mtime=0)]
)
async def test_a_packed_body_is_the_same_wherever_it_is_cut(packed: bytes) -> None:
    encoding = b"gzip" if packed.startswith(b"\x1f\x8b") else b"deflate"
    for at in range(len(packed)):
        call = await called(size_of, [b"", packed[:at], packed[at:]], scope((b"content-encoding", encoding)))
        assert (call.status, call.json) == (200, 2)


async def test_a_fault_in_reading_a_body_is_answered_as_any_other() -> None:
    async def receive() -> dict[str, Any]:
        raise ZeroDivisionError("a bug")

    call = Call([])
    await JsonApi(lambda _, __: echo, 100)(scope(), receive, call.send)
    assert (call.status, set(call.json["error"])) == (500, {"message", "type", "param", "code"})


@pytest.mark.parametrize("body", [b"{", b'{"a": "\xff"}', b"[" * 60, b'{"a": 1' + b"0" * 30 + b"}"])
async def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    call = await called(echo, [body])
    assert (call.status, call.json["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (HttpError(404, "gone", code="c", param="p"), 404, "invalid_request_error"),
        (BusUnavailable("no broker"), 503, "server_error"),
        (NotFound("no such role"), 404, "invalid_request_error"),
        (BadRequest("no text", param="p"), 400, "invalid_request_error"),
        (InvalidMessage("no text", "/p"), 400, "invalid_request_error"),
        (Forbidden("it lacks a scope"), 403, "permission_error"),
        (WrongState("it has ended"), 409, "invalid_request_error"),
        (Conflict("another was faster"), 409, "invalid_request_error"),
        (Rejected("it cannot be"), 422, "invalid_request_error"),
        (DigestMismatch("other bytes"), 422, "invalid_request_error"),
        (Unreadable("key", 1, "damaged"), 503, "server_error"),
        (MissingExtra("engine", "it"), 500, "server_error"),
        (ZeroDivisionError("a bug"), 500, "server_error"),
    ],
)
async def test_every_error_has_openais_shape(error: Exception, status: int, kind: str) -> None:
    call = await called(raising(error))
    assert call.status == status
    assert set(call.json["error"]) == {"message", "type", "param", "code"}
    assert call.json["error"]["type"] == kind
    assert "a bug" not in call.json["error"]["message"]


async def test_a_handler_ends_when_its_client_goes_away() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: Request) -> Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("never reached")

    call = Call([b"{}"])
    serving = asyncio.create_task(called(endless, call, cancel_on_disconnect=True))
    await started.wait()
    call.gone.set()
    await serving
    await asyncio.wait_for(ended.wait(), 5)
    assert call.sent == []


async def test_errors_are_answered_while_the_client_is_watched() -> None:
    assert (await called(raising(HttpError(429, "full")), cancel_on_disconnect=True)).status == 429
    assert (await called(raising(ZeroDivisionError()), cancel_on_disconnect=True)).status == 500
    assert (await called(echo, cancel_on_disconnect=True)).status == 200


async def test_nothing_is_sent_to_a_client_that_left_before_its_body_was_read() -> None:
    assert (await called(echo, Call([], stays=False))).sent == []


async def test_a_stream_is_sent_piece_by_piece() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def handler(_: Request) -> EventStream:
        return EventStream(pieces(), [(b"x-turn", b"7")])

    start, *bodies = (await called(handler)).sent
    assert start["status"] == 200
    assert {(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-turn", b"7")} <= set(start["headers"])
    assert [body["body"] for body in bodies] == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert [body.get("more_body", False) for body in bodies] == [True, True, False]


async def test_a_stream_is_closed_where_it_stands_when_its_client_goes_away() -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b": alive\n\n"
                begun.set()
                await asyncio.sleep(0)
        finally:
            closed.set()

    async def handler(_: Request) -> EventStream:
        return EventStream(endless())

    call = Call([b"{}"])
    serving = asyncio.create_task(called(handler, call))
    await begun.wait()
    call.gone.set()
    await serving
    assert closed.is_set()


async def test_a_stream_is_closed_even_when_its_client_went_away_before_it_began() -> None:
    closed = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
        finally:
            closed.set()

    async def handler(_: Request) -> EventStream:
        return EventStream(pieces())

    async def send(_: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await JsonApi(lambda _, __: handler, 100)(scope(), Call([b"{}"]).receive, send)
    assert closed.is_set()


async def test_body_that_is_too_large_is_read_up_to_a_bound_and_refused() -> None:
    read = await called(echo, [b"x" * 60] * 5)
    assert (read.status, read.unread) == (413, 0)
    endless = await called(echo, [b"x" * 60] * 50)
    assert endless.status == 413
    assert endless.unread > 30


async def test_the_query_reaches_the_handler() -> None:
    async def handler(request: Request) -> Response:
        return json_response({"query": request.query})

    call = await called(handler, [b""], scope(query_string=b"role=a&limit=2"))
    assert call.json == {"query": "role=a&limit=2"}


async def test_a_body_of_too_many_values_reaches_no_handler() -> None:
    handled: list[Request] = []

    async def handler(request: Request) -> Response:
        handled.append(request)
        return json_response({})

    call = Call([b"[" + b"{}," * 300_000 + b"1]"])
    await JsonApi(lambda _, __: handler, 2_000_000)(scope(), call.receive, call.send)
    assert (call.status, call.json["error"]["code"]) == (400, "too_many_values")
    assert not handled


async def test_a_body_takes_room_for_what_it_decodes_to() -> None:
    async def handler(_: Request) -> Response:
        return json_response({})

    statuses: list[int] = []
    for value in (b"1,", b"12345678,"):
        call = Call([b"[" + value * (900_000 // len(value)) + b"1]"])
        await JsonApi(lambda _, __: handler, 2_000_000, bodies_limit=20_000_000)(scope(), call.receive, call.send)
        statuses.append(call.status)
    assert statuses == [503, 200]
