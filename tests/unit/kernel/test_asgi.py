"""The raw ASGI server: bodies within a limit, errors in OpenAI's shape, handlers that end with their client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ratchet.kernel.asgi import Handler, HttpError, JsonApi, Request, Response, json_response
from ratchet.kernel.errors import BusUnavailable, NotFound


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
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.sent[1]["body"])


async def called(handler: Handler, chunks: Sequence[bytes] = (b"{}",), limit: int = 100, **options: bool) -> Call:
    call = Call(chunks)
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": [(b"x-one", b"1"), (b"empty", b"")]}
    await JsonApi(lambda _, __: handler, limit, **options)(scope, call.receive, call.send)
    return call


async def echo(request: Request) -> Response:
    return json_response({"said": request.json(), "one": request.header(b"x-one"), "empty": request.header(b"empty")})


def raising(error: Exception) -> Handler:
    async def handler(_: Request) -> Response:
        raise error

    return handler


async def test_a_body_in_pieces_is_put_together() -> None:
    call = await called(echo, [b'{"a":', b" 1", b"}"])
    assert (call.status, call.json) == (200, {"said": {"a": 1}, "one": "1", "empty": None})


@pytest.mark.parametrize("chunks", [[b"x" * 101], [b"x" * 60, b"x" * 60, b"x"]])
async def test_a_body_over_the_limit_is_refused(chunks: list[bytes]) -> None:
    call = await called(echo, chunks)
    assert (call.status, call.json["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_is_no_json_is_refused() -> None:
    call = await called(echo, [b"{"])
    assert (call.status, call.json["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (HttpError(404, "gone", code="c", param="p"), 404, "invalid_request_error"),
        (BusUnavailable("no broker"), 503, "server_error"),
        (NotFound("no such role"), 400, "invalid_request_error"),
        (ZeroDivisionError("a bug"), 500, "server_error"),
    ],
)
async def test_every_error_has_openais_shape(error: Exception, status: int, kind: str) -> None:
    call = await called(raising(error))
    assert call.status == status
    assert set(call.json["error"]) == {"message", "type", "param", "code"}
    assert call.json["error"]["type"] == kind
    assert "a bug" not in call.json["error"]["message"]


async def test_a_handler_ends_when_its_client_goes() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: Request) -> Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("never reached")

    call = Call([b"{}"])
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    app = JsonApi(lambda _, __: endless, 100, cancel_on_disconnect=True)
    serving = asyncio.create_task(app(scope, call.receive, call.send))
    await started.wait()
    call.gone.set()
    await serving
    await asyncio.wait_for(ended.wait(), 5)
    assert call.sent == []


async def test_errors_are_answered_while_the_client_is_watched() -> None:
    assert (await called(raising(HttpError(429, "full")), cancel_on_disconnect=True)).status == 429
    assert (await called(raising(ZeroDivisionError()), cancel_on_disconnect=True)).status == 500
    assert (await called(echo, cancel_on_disconnect=True)).status == 200


async def test_nothing_is_sent_to_a_client_that_left_before_it_was_heard() -> None:
    call = Call([], stays=False)
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    await JsonApi(lambda _, __: echo, 100)(scope, call.receive, call.send)
    assert call.sent == []
