"""Everything that the console answers: pages for anybody, the rest for known callers.

The pages are the bundle of the package, in memory, packed once, with the headers that keep them to themselves. A file
whose name holds its hash never changes; every other one is asked for each time, and an unchanged one is not sent again.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from ratchet.console.metrics import REQUESTS
from ratchet.core.service.asgi import AsgiApp, Headers, Receive, Response, Scope, Send, problem_response, send_response
from ratchet.core.service.problems import HttpError, not_allowed

INDEX = "index.html"
MISSING = (
    "the console's pages are not part of this installation: `npm ci && npm run build` in services/ratchet/console/web"
    " builds them"
)
"""What is said in the place of pages that were never built."""
SECURITY: Headers = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; style-src 'self'; connect-src 'self'; base-uri 'none';"
        b" form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""Of every answer: pages load nothing from elsewhere, run nothing inline, and stand in no frame."""
KINDS: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
PACKED = frozenset({"css", "html", "js", "json", "map", "svg", "txt"})
_HASHED = re.compile(r"-[A-Z0-9]{8}\.\w+$")
"""A name as the build gives it."""
_FOREVER = b"public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Page:
    """A file as it is sent."""

    content: bytes
    packed: bytes | None
    """With gzip; None where that is not smaller."""
    headers: Headers
    tag: bytes
    """Its `ETag`."""


def read_pages(folder: Traversable | None = None) -> dict[str, Page]:
    """The files below `folder`, by path; by default the package's own. Empty where they were never built."""
    root = folder or files("ratchet.console") / "static"
    return dict(_below(root, "/")) if root.is_dir() else {}


def _below(folder: Traversable, path: str) -> list[tuple[str, Page]]:
    pages: list[tuple[str, Page]] = []
    for each in folder.iterdir():
        if each.is_dir():
            pages += _below(each, f"{path}{each.name}/")
        elif each.name.rpartition(".")[2] in KINDS:
            pages.append((path + each.name, _page(each.name, each.read_bytes())))
    return pages


def _page(name: str, content: bytes) -> Page:
    suffix = name.rpartition(".")[2]
    packed = gzip.compress(content, mtime=0) if suffix in PACKED else content
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'.encode()
    kept = b"no-store" if name == INDEX else _FOREVER if _HASHED.search(name) else b"no-cache"
    headers = (
        (b"content-type", KINDS[suffix].encode()),
        (b"cache-control", kept),
        (b"etag", tag),
        (b"vary", b"accept-encoding"),
    )
    return Page(content, packed if len(packed) < len(content) else None, headers, tag)


class Pages:
    """An ASGI application: the files, and nothing for any other path."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages

    @property
    def missing(self) -> str | None:
        """Why there are no pages."""
        return None if f"/{INDEX}" in self._pages else MISSING

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI entry point."""
        path = scope["path"]
        page = self._pages.get(f"/{INDEX}" if path == "/" else path)
        if scope["method"] not in ("GET", "HEAD"):
            await send_response(send, problem_response(not_allowed(scope["method"], path, ("GET", "HEAD"))))
        elif page is None:
            why = MISSING if path == "/" else f"no such page: {path}"
            await send_response(send, problem_response(HttpError(503 if path == "/" else 404, why)))
        else:
            await _send_page(send, page, scope["headers"], with_body=scope["method"] == "GET")


async def _send_page(send: Send, page: Page, asked: Headers, *, with_body: bool) -> None:
    encodings, tags = _values(asked, b"accept-encoding"), _values(asked, b"if-none-match")
    if page.tag in tags:
        await send({"type": "http.response.start", "status": 304, "headers": [*page.headers]})
        await send({"type": "http.response.body", "body": b""})
        return
    is_packed = page.packed is not None and b"gzip" in encodings
    content = page.packed if page.packed is not None and is_packed else page.content
    headers = [*page.headers, (b"content-length", str(len(content)).encode())]
    headers += [(b"content-encoding", b"gzip")] if is_packed else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content if with_body else b""})


def _values(headers: Headers, name: bytes) -> Sequence[bytes]:
    """The members of a list in a header, without their parameters and without `W/`."""
    parts = [part for each, value in headers if each == name for part in value.split(b",")]
    return [part.partition(b";")[0].strip().removeprefix(b"W/") for part in parts]


OWN = ("/v1/", "/openapi.json")
"""How the paths of the console's own API begin."""

PAGES = "pages"
NEVER_KEPT: Headers = ((b"cache-control", b"no-store"),)
"""Of every answer that a key has opened: what people wrote stays on no disk of a browser."""


class Site:
    """The ASGI application of the console: `/health` and the pages, its own API, and what it passes on."""

    def __init__(
        self, pages: AsgiApp, api: AsgiApp, passed: Mapping[str, AsgiApp], others: Mapping[str, AsgiApp] | None = None
    ) -> None:
        """`passed`: applications by the first part of the path; `others`: by the whole path."""
        self._pages = pages
        self._api = api
        self._passed = passed
        self._others = others or {}

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
        elif path in self._others:
            part, app = "api", self._others[path]

        async def sending(event: Scope) -> None:
            if event["type"] == "http.response.start":
                kept = () if part == PAGES else NEVER_KEPT
                event["headers"] = [*event["headers"], *SECURITY, *kept]
                REQUESTS.labels(part, event["status"]).inc()
            await send(event)

        await app(scope, receive, sending)


async def _alive(_: Scope, __: Receive, send: Send) -> None:
    await send_response(send, Response(200, msgspec.json.encode({"status": "ok"})))
