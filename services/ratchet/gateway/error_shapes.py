"""Errors in the shape that their path has, also those of keys, limits, the reader of bodies, and engines: of the
Messages API in Anthropic's, of OTLP in its own."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ratchet.bus.message import decode
from ratchet.core.contract.http.answers import ErrorOut
from ratchet.core.service.asgi import AsgiApp, Receive, Scope, Send
from ratchet.core.service.problems import HttpError
from ratchet.dialects.messages.answers import error_body
from ratchet.dialects.messages.dialect import MESSAGES
from ratchet.dialects.requests import Body
from ratchet.dialects.telemetry.otlp import JSON, PROTOBUF
from ratchet.gateway.http_api import split_path
from ratchet.gateway.telemetry import SIGNALS, status_body

REQUEST_ID = b"request-id"
"""Header in which Anthropic's clients find the call's id."""
_TURN = b"x-ratchet-turn"
_OF_BODY = (b"content-type", b"content-length")


class ErrorShapes:
    """In front of the gateway's application: rewrites the errors of `/v1/messages*` and of OTLP, and leaves all else.

    An answer of `/v1/messages*` without a `request-id` gets the turn's, so that what clients report names the turn.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "http" and _is_messages(scope["path"]):
            send = _Shaped(send)
        elif scope["type"] == "http" and is_telemetry(scope["path"]):
            send = _Statuses(send, dict(scope["headers"]).get(b"content-type", b"").decode("latin-1"))
        await self._app(scope, receive, send)


def error_json(path: str, error: HttpError) -> bytes:
    """An error that the server answers before the gateway's application, in the shape of its path."""
    if is_telemetry(path):
        return status_body(error.status, str(error), "")
    if not _is_messages(path):
        return error.json
    return msgspec.json.encode(error_body(error.status, str(error), code=error.code, param=error.param))


def _is_messages(path: str) -> bool:
    return f"{split_path(path)[1]}/".startswith(f"/v1{MESSAGES.path}/")


def is_telemetry(path: str) -> bool:
    """Whether a path is one of OTLP."""
    return split_path(path)[1].removeprefix("/v1/") in SIGNALS


@dataclass(slots=True)
class _Statuses:
    """Sends an answer of OTLP on: an error as a `google.rpc.Status` in the request's content type.

    A limit is 503, which every exporter takes for a passing fault: several take 429 for a lasting one.
    """

    send: Send
    content_type: str
    _begun: MutableMapping[str, Any] | None = None
    _body: bytearray = field(default_factory=bytearray)

    async def __call__(self, event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start" and event["status"] >= 400:
            self._begun = event
            return
        if self._begun is None:
            await self.send(event)
            return
        self._body += event.get("body", b"")
        if event.get("more_body"):
            return
        status = 503 if self._begun["status"] == 429 else self._begun["status"]
        kind = PROTOBUF if self.content_type.partition(";")[0].strip().lower() == PROTOBUF else JSON
        body = status_body(status, msgspec.json.decode(bytes(self._body), type=ErrorOut).error.message, kind)
        kept = [(name, value) for name, value in self._begun["headers"] if name not in _OF_BODY]
        about = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await self.send({**self._begun, "status": status, "headers": [*kept, *about]})
        await self.send({"type": "http.response.body", "body": body})


@dataclass(slots=True)
class _Shaped:
    """Sends an answer on: one with an error once it is whole."""

    send: Send
    _begun: MutableMapping[str, Any] | None = None
    """The begin of an answer with an error."""
    _body: bytearray = field(default_factory=bytearray)

    async def __call__(self, event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = headers = _identified(event["headers"])
            if event["status"] >= 400:
                self._begun = {**event, "headers": headers}
                return
        if self._begun is None:
            await self.send(event)
            return
        self._body += event.get("body", b"")
        if not event.get("more_body"):
            begun, self._begun = self._begun, None
            headers = dict(begun["headers"])
            body = _shaped(begun["status"], bytes(self._body), headers.get(REQUEST_ID, b"").decode("latin-1") or None)
            kept = [(name, value) for name, value in begun["headers"] if name != b"content-length"]
            await self.send({**begun, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
            await self.send({"type": "http.response.body", "body": body})


def _identified(headers: Any) -> list[tuple[bytes, bytes]]:
    """`Any`: ASGI allows any iterable."""
    listed: list[tuple[bytes, bytes]] = [(name, value) for name, value in headers]
    named = dict(listed)
    return [*listed, (REQUEST_ID, named[_TURN])] if _TURN in named and REQUEST_ID not in named else listed


def _shaped(status: int, body: bytes, request_id: str | None) -> bytes:
    """The error in Anthropic's shape; a provider's own error, and what is no error of ours, as it is."""
    try:
        answer = decode(body)
    except msgspec.DecodeError:
        return body
    error: Any = cast("Body", answer).get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or cast("Body", answer).get("type") == "error":
        return body
    members = cast("Body", error)
    code, param = (value if isinstance(value := members.get(name), str) else None for name in ("code", "param"))
    message = str(members.get("message") or f"status {status}")
    return msgspec.json.encode(error_body(status, message, code=code, param=param, request_id=request_id))
