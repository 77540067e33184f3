"""Who may call, and how often: asked before anything of a body is read."""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from pydantic import IPvAnyNetwork

from ratchet.gateway.domain.rate_limit import RateLimit
from ratchet.service.asgi import Receive, Response, Scope, Send, client_of, problem_response, send_response
from ratchet.service.problems import HttpError

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """API keys and a rate limit in front of an ASGI application, where the gateway has some."""

    def __init__(
        self, app: App, keys: frozenset[str], limit: RateLimit | None, proxies: Sequence[IPvAnyNetwork] = ()
    ) -> None:
        """`proxies`: whose word counts for the address of a caller."""
        self._app = app
        self._proxies = proxies
        self._keys = keys
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point: 401 without a key that is known, 429 beyond the limit."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await send_response(send, refusal)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        caller = self._caller(scope)
        if caller is None:
            problem = HttpError(401, "incorrect API key", kind="authentication_error", code="invalid_api_key")
            return problem_response(problem)
        wait_s = self._limit.wait_s(caller) if self._limit is not None else 0.0
        if not wait_s:
            return None
        problem = HttpError(429, "too many requests", kind="rate_limit_error", code="rate_limit_exceeded")
        return problem_response(problem, [(b"retry-after", str(math.ceil(wait_s)).encode())])

    def _caller(self, scope: Scope) -> str | None:
        """The API key, None if it is wrong; without keys the client's address.

        Every key is compared: the time tells nothing of them.
        """
        if not self._keys:
            return address_of(scope, self._proxies)
        given = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
        matches = [key for key in self._keys if hmac.compare_digest(key.encode(), given)]
        return matches[0] if matches else None


def address_of(scope: Scope, proxies: Sequence[IPvAnyNetwork]) -> str:
    """The address of a caller: of the connection, or what the nearest proxies that are trusted say of it.

    Each proxy adds at the right whom it saw; everything further left a caller can make up.
    """
    address = client_of(scope)
    said = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    forwarded = [part.strip() for part in b",".join(said).decode("latin-1").split(",") if part.strip()]
    while forwarded and _is_in(address, proxies):
        address = forwarded.pop()
    return address


def _is_in(address: str, networks: Sequence[IPvAnyNetwork]) -> bool:
    try:
        known = ip_address(address)
    except ValueError:
        return False
    return any(known in network for network in networks)
