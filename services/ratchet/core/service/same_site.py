"""Requests come from programs, not from web pages of other sites.

A page that a person has open can send requests to a service on the person's machine or network. Without asking first it
can send no JSON content type, and `Origin` names the page's own site: both are checked for every method that may change
something. A page whose name was made to point here (DNS rebinding) may read the answers too, and sends that name as
`Host`, which is checked for every method.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from ratchet.core.service.asgi import AsgiApp, Receive, Scope, Send, send_problem
from ratchet.core.service.problems import ErrorJson, HttpError, as_openai

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_KINDS = frozenset({b"application/json", b"application/x-protobuf", b"application/octet-stream"})
"""Content types that no page can send to another site without asking first."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Whose pages may send requests that change something."""

    hosts: Sequence[str] = ()
    """Names under which the service is known beside IP addresses and names without a dot: its own pages."""
    origins: Sequence[str] = ()
    """Other sites, as `Origin` names them (`https://console.example`)."""


class SameSite:
    """Refuses, in front of any ASGI application, requests that a page of another site may have sent."""

    def __init__(self, app: AsgiApp, sites: Sites, error_json: ErrorJson = as_openai) -> None:
        self._app = app
        self._error_json = error_json
        self._hosts = frozenset(host.lower() for host in sites.hosts)
        self._origins = frozenset(origin.encode("latin-1").lower() for origin in sites.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point: 403 for another site, 415 for other content types than `_KINDS`, 400 for more than one."""
        problem = None
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            problem = _repeated_header(scope["headers"]) or (
                unknown_host(headers, self._hosts)
                if scope["method"] in _SAFE
                else refusal(headers, self._hosts, self._origins)
            )
        if problem is not None:
            await send_problem(send, scope, problem, self._error_json)
        else:
            await self._app(scope, receive, send)


def _repeated_header(headers: Sequence[tuple[bytes, bytes]]) -> HttpError | None:
    """A proxy in front may have judged another copy of the header than this server would."""
    names = [name for name, _ in headers]
    twice = next((name for name in (b"host", b"origin", b"content-type") if names.count(name) > 1), None)
    return HttpError(400, f"the header {twice.decode()} comes twice", code="repeated_header") if twice else None


def refusal(
    headers: Mapping[bytes, bytes], hosts: frozenset[str], origins: frozenset[bytes] = frozenset()
) -> HttpError | None:
    """Why a request that may change something is refused; None when it is not."""
    unknown = unknown_host(headers, hosts)
    if unknown is not None:
        return unknown
    host = headers.get(b"host", b"").decode("latin-1").lower()
    origin = headers.get(b"origin")
    ours = origin is None or origin.lower() in origins or _is_ours(origin.decode("latin-1").lower(), host, hosts)
    if not ours:
        return HttpError(403, "requests of another site's pages are refused", code="other_origin")
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if (has_body or kind) and kind not in _KINDS:
        return HttpError(415, "the content type must be application/json", code="unsupported_media_type")
    return None


def unknown_host(headers: Mapping[bytes, bytes], hosts: frozenset[str]) -> HttpError | None:
    """The refusal of a request for a name that another site may have; None for a name of ours."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = _name(host)
    if not host or _cannot_be_a_site(name) or name in hosts:
        return None
    return HttpError(403, f"this service is not known as {name}: see RATCHET_ALLOWED_HOSTS", code="unknown_host")


def _is_ours(origin: str, host: str, hosts: frozenset[str]) -> bool:
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(netloc) and (netloc == host or _name(netloc) in hosts)


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


@lru_cache(maxsize=256)
def _cannot_be_a_site(name: str) -> bool:
    """An address, or a name without a dot, such as `localhost` and services' names: no attacker can register those."""
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".localhost")
    return True
