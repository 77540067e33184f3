"""The console's pages as they are served, with their headers, over an API that answers from a scene.

`python -m tests.support.fake_console` serves it at a port, to work on the pages.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ratchet.console.pages import Pages, Site, read_pages
from ratchet.core.contract.http.console import HintOut, LoopOut, SessionOut
from ratchet.core.rules.access import Caller
from ratchet.core.service.asgi import Receive, Scope, Send
from ratchet.core.service.authentication import session_of
from tests.support.console_scene import scene

OPERATOR, VIEWER, REVIEWER = "operator-key", "viewer-key", "reviewer-key"
PARTS = ("coordinator", "deployer", "gateway", "workflows", "analyst", "v1")
STARTED_S = 20.0


@dataclass(frozen=True, slots=True)
class Posted:
    """A request that the pages sent."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    key: str | None


Answering = msgspec.Struct | dict[str, Any] | Callable[[Posted], Any]


class Refused(Exception):
    """An error's status and message, as a service answers it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class FakeConsole:
    """What the API answers. Tests change it while pages are open."""

    answers: dict[str, Answering] = field(default_factory=scene)
    """By `METHOD path`: an answer, or what makes one of a request."""
    away: dict[str, str] = field(default_factory=dict[str, str])
    """By the first part of the path: the words of a service that is away."""
    posted: deque[Posted] = field(default_factory=lambda: deque[Posted](maxlen=1000))
    hints: list[HintOut] = field(default_factory=list[HintOut])
    """Every stream of events sends them, each once."""
    revoked: set[str] = field(default_factory=set[str])
    asks_for_keys: bool = True
    ends_streams: bool = False
    """True: a stream of events ends soon, as after five minutes."""
    streams: bool = True
    """False: the stream of events ends at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._known(request)
        except Refused as refused:
            error = {"error": {"message": refused.message, "type": "error", "param": None, "code": None}}
            return _json(error, refused.status)

    async def _known(self, request: Request) -> Response:
        path, key = request.url.path, request.headers.get("authorization", "").removeprefix("Bearer ") or None
        session = self._session(key)
        part = path.split("/")[1]
        if part in self.away:
            raise Refused(503, self.away[part])
        if path == "/v1/session":
            return _json(session)
        if path == "/v1/events":
            return StreamingResponse(self._events() if self.streams else _nothing(), media_type="text/event-stream")
        body = await request.body()
        posted = Posted(request.method, path, dict(request.query_params), msgspec.json.decode(body or b"null"), key)
        self.posted.append(posted)
        answer = self.answers.get(f"{request.method} {path}")
        if answer is None:
            raise Refused(404, f"no such path: {path}")
        made = answer(posted) if callable(answer) else answer
        return made if isinstance(made, Response) else _json(made)

    def _session(self, key: str | None) -> SessionOut:
        known = {
            OPERATOR: session_of(Caller("k1", "ada", frozenset({"admin"}))),
            REVIEWER: session_of(Caller("k3", "rita", frozenset({"annotate"}))),
            VIEWER: session_of(Caller("k2", "vic", frozenset({"view"}))),
        }
        if not self.asks_for_keys:
            return msgspec.structs.replace(known[OPERATOR], key_id=None, name="anybody on this computer")
        if key is None:
            raise Refused(401, "no API key: send one as Authorization: Bearer <key>")
        if key not in known or key in self.revoked:
            raise Refused(401, "this API key is unknown, expired or revoked")
        return known[key]

    async def _events(self) -> AsyncIterator[bytes]:
        sent = 0
        yield b": ratchet\n\n"
        while not self.ends_streams:
            loop = self.answers.get("GET /v1/loop")
            if isinstance(loop, LoopOut):
                yield b"event: loop\ndata: " + msgspec.json.encode(loop) + b"\n\n"
            for hint in self.hints[sent:]:
                yield b"event: hint\ndata: " + msgspec.json.encode(hint) + b"\n\n"
            sent = len(self.hints)
            await asyncio.sleep(0.2)


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


@contextmanager
def serving(fake: FakeConsole, port: int = 0) -> Iterator[str]:
    """The address of the console's pages over `fake`."""
    site = Site(Pages(read_pages()), fake, dict.fromkeys(PARTS, fake))
    config = uvicorn.Config(site, port=port, log_level="error", ws="none", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(int(STARTED_S / 0.05)):
            if server.started:
                break
            threading.Event().wait(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(STARTED_S)


if __name__ == "__main__":
    with serving(FakeConsole(), int(sys.argv[1]) if len(sys.argv) > 1 else 8084) as address:
        sys.stdout.write(f"{address}, with one of the keys {OPERATOR}, {REVIEWER}, {VIEWER}\n")
        sys.stdout.flush()
        threading.Event().wait()
