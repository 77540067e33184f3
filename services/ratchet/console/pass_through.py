"""Requests that the console passes on to the service that owns the matter, with the key of the person who asks.

Only listed methods and paths are passed on, and of a request only its body, its query and that key: the owner checks
the scope, and its record names the person. Answers that come as a stream are passed on as they come.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.asgi import (
    Answer,
    AsgiApp,
    EventStream,
    Handler,
    JsonApi,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    problem_response,
    send_response,
)
from ratchet.core.service.authentication import own_key
from ratchet.core.service.http_client import TIMEOUT, AsyncApiClient, Stream, is_error
from ratchet.core.service.problems import HttpError, http_error, not_allowed

log = structlog.get_logger()

BODY_BYTES = 8 * 1024 * 1024
"""Most bytes of a body: a training request has a few thousand, a prompt of a person seldom more."""
CONNECT_S = 2.0
"""A service that takes longer to be reached is away: pages are open meanwhile."""
_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_MODEL = rf"/v1/models/{ROLE.pattern}/[0-9]{{1,10}}"
_PASSED_HEADERS = ("retry-after", "x-ratchet-trajectory", "x-ratchet-turn", "x-ratchet-policy", "x-ratchet-arm")
"""Of an answer; everything else in its head is about the connection between console and service."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A method and the paths that it is passed on for."""

    method: str
    path: str
    """A pattern of all of it."""
    timeout_s: float = 30.0
    """Longest wait for the answer's head, and for each of its parts."""


COORDINATOR: Sequence[Passed] = (
    Passed("GET", rf"/v1/jobs(/{_ID})?"),
    Passed("GET", r"/v1/plan", 120),
    Passed("GET", r"/v1/status(/training|/dpo)?"),
    Passed("GET", rf"/v1/models(/{ROLE.pattern})?|{_MODEL}(/lineage|/outcome-times|/costs)?", 60),
    Passed("GET", r"/v1/replay/prompts", 60),
    Passed("POST", rf"/v1/jobs|/v1/jobs/(?!preview/){_ID}/(cancel|resume)"),
    Passed("POST", r"/v1/jobs/preview|/v1/snapshots", 600),
)
DEPLOYER: Sequence[Passed] = (
    Passed(
        "GET", rf"/v1/rollouts(/{ROLE.pattern}(/audit|/trail)?)?|/v1/policies(/{ROLE.pattern}(/[0-9]{{1,10}}/bundle)?)?"
    ),
    Passed("POST", rf"/v1/rollouts/{ROLE.pattern}/(start|approve|pause|resume|promote|rollback|revert)"),
)
GATEWAY: Sequence[Passed] = (
    Passed("GET", r"/v1/models"),
    Passed("POST", rf"/v1/feedback|/v1/trajectories/{_ID}/end"),
    Passed("POST", r"/v1/chat/completions", 600),
)
WORKFLOWS: Sequence[Passed] = (
    Passed("GET", rf"/v1/workflows(/{_ID})?"),
    Passed("POST", rf"/v1/workflows/{_ID}/cancel"),
)
_HEX = r"[0-9a-f]{32}"
ANALYST: Sequence[Passed] = (
    Passed("GET", rf"/v1/(patterns|plans)(/{ROLE.pattern}/{_HEX})?|/v1/learning/{ROLE.pattern}/(events|report)"),
    Passed("GET", rf"/v1/episodes/{_ID}", 60),
    Passed(
        "POST", rf"/v1/patterns/{ROLE.pattern}/{_HEX}/(dismiss|reopen)|/v1/plans/{ROLE.pattern}/{_HEX}/(approve|reject)"
    ),
    Passed("POST", r"/v1/analyses", 120),
)


class PassThrough:
    """An ASGI application: the routes of one service below a prefix of the console's paths."""

    def __init__(self, prefix: str, peer: AsyncApiClient | None, name: str, routes: Sequence[Passed]) -> None:
        """`prefix`: the first part of the path; `peer`: None where the installation has no such service; `name`: what
        people call it."""
        self._prefix = f"/{prefix}"
        self._peer = peer
        self._name = name
        self._routes = routes
        self._api: AsgiApp = JsonApi(self._find, BODY_BYTES, cancel_on_disconnect=prefix == "gateway")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point. Listed paths need no escapes: a path with one is refused, whatever it means."""
        path, raw = scope["path"], scope.get("raw_path") or scope["path"].encode()
        if b"%" in raw:
            await send_response(send, problem_response(_no_such_path(path)))
        else:
            await self._api({**scope, "path": path.removeprefix(self._prefix)}, receive, send)

    def _find(self, method: str, path: str) -> Handler:
        """Method and path to handler. Raises `HttpError` (404, 405)."""
        routes = [route for route in self._routes if re.fullmatch(route.path, path)]
        route = next((route for route in routes if route.method == method), None)
        if route is None:
            whole = self._prefix + path
            raise not_allowed(method, whole, [route.method for route in routes]) if routes else _no_such_path(whole)

        async def passed(request: Request) -> Answer:
            return await self._pass(request, route.timeout_s)

        return passed

    async def _pass(self, request: Request, timeout_s: float) -> Answer:
        """The service's answer. Raises `HttpError`: 404 where there is none, 503 when it is away, 504 when it takes too
        long."""
        if self._peer is None:
            variable = f"RATCHET_{self._prefix[1:].upper()}_URL"
            raise HttpError(404, f"{self._name} service does not run here, or {variable} does not say where")
        target = f"{request.path}?{request.query}" if request.query else request.path
        key, body = own_key(request), request.body or None
        try:
            stream = await self._peer.stream(request.method, target, body=body, timeout_s=timeout_s, headers=key)
            kept = {name: stream.headers[name] for name in _PASSED_HEADERS if name in stream.headers}
            headers = [(name.encode(), value.encode("latin-1")) for name, value in kept.items()]
            if stream.status == 200 and stream.headers.get("content-type", "").startswith("text/event-stream"):
                return EventStream(self._events(stream), headers)
            content = await stream.whole()
        except Unavailable as error:
            raise self._away(error) from error
        if stream.status < 300 or is_error(content):
            return Response(stream.status, content, headers)
        raise HttpError(502, f"{self._name}, or a proxy before it, answered {stream.status}", code="unavailable")

    async def _events(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """The parts of a stream; one that breaks off ends with the reason, as an event in OpenAI's shape."""
        async with aclosing(stream.parts()) as parts:
            try:
                async for part in parts:
                    yield part
            except Unavailable as error:
                log.warning("a stream broke off", service=self._name, reason=str(error))
                yield b"\n\ndata: " + self._away(error).json + b"\n\n"

    def _away(self, error: RatchetError) -> HttpError:
        if error.code == TIMEOUT:
            return HttpError(504, f"{self._name} took too long; it may have taken the request", code=TIMEOUT)
        return HttpError(503, f"{http_error(error)}: try again when it is back", code="unavailable")


def _no_such_path(path: str) -> HttpError:
    return HttpError(404, f"no such path: {path}; the console's README lists what it passes on")
