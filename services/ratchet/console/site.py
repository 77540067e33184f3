"""Everything that the console answers, by the beginning of the path: pages for anybody, the rest for known callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from prometheus_client import Counter

from ratchet.console.pages import SECURITY
from ratchet.core.service.asgi import AsgiApp, Headers, Receive, Response, Scope, Send, problem_response, send_response
from ratchet.core.service.same_site import unknown_host

REQUESTS = Counter(
    "ratchet_console_requests_total",
    "Requests by what they ask: pages, api, or the service that they are passed on to.",
    ["part", "status"],
)
OWN = ("/v1/", "/openapi.json")
"""How the paths of the console's own API begin."""

PAGES = "pages"
NEVER_KEPT: Headers = ((b"cache-control", b"no-store"),)
"""Of every answer that a key has opened: what people wrote stays on no disk of a browser."""


class Site:
    """The ASGI application of the console: `/health` and the pages, its own API, and what it passes on.

    A page whose name was made to point here (DNS rebinding) could read all that the API shows, so reading takes a host
    of ours too.
    """

    def __init__(self, pages: AsgiApp, api: AsgiApp, passed: Mapping[str, AsgiApp], hosts: Iterable[str] = ()) -> None:
        """`passed`: applications by the first part of the path; `hosts`: names of the console, see `Sites`."""
        self._pages = pages
        self._api = api
        self._passed = passed
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        first = path.removeprefix("/").partition("/")[0]
        part, app = ("api", self._api) if path.startswith(OWN) else (PAGES, self._pages)
        if path == "/health":
            app = _alive
        elif first in self._passed:
            part, app = first, self._passed[first]

        async def sending(event: Scope) -> None:
            if event["type"] == "http.response.start":
                kept = () if part == PAGES else NEVER_KEPT
                event["headers"] = [*event["headers"], *SECURITY, *kept]
                REQUESTS.labels(part, event["status"]).inc()
            await send(event)

        unknown = unknown_host(dict(scope["headers"]), self._hosts)
        if unknown is not None:
            await send_response(sending, problem_response(unknown))
        else:
            await app(scope, receive, sending)


async def _alive(_: Scope, __: Receive, send: Send) -> None:
    await send_response(send, Response(200, msgspec.json.encode({"status": "ok"})))
