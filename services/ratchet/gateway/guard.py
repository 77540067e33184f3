"""Who may call, and how often: checked before the gateway reads anything of a body."""

from __future__ import annotations

import hmac
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from pydantic import IPvAnyNetwork

from ratchet.service.asgi import Receive, Scope, Send, client_of, problem_response, send_response
from ratchet.service.problems import HttpError

App = Callable[[Scope, Receive, Send], Awaitable[None]]

REMEMBERED_CALLERS = 10_000
"""Beyond them the limit forgets the caller that has been quiet the longest, who then begins with a full bucket."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Lets a caller make so many requests in a minute, at once or spread; a quiet minute fills the bucket again."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float], *, callers: int = REMEMBERED_CALLERS) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._callers = callers
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """0 for a request that the caller may make, and it counts; else the seconds until the caller may make one."""
        now = self._monotonic()
        bucket = self._buckets.setdefault(caller, _Bucket(self._per_minute, now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._per_minute, bucket.tokens + (now - bucket.at) * self._per_minute / 60)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * 60 / self._per_minute
        bucket.tokens -= 1
        return 0.0

    def __len__(self) -> int:
        return len(self._buckets)


class Guard:
    """API keys and a rate limit in front of an ASGI application, where the gateway has some."""

    def __init__(
        self, app: App, keys: frozenset[str], limit: RateLimit | None, proxies: Sequence[IPvAnyNetwork] = ()
    ) -> None:
        """`proxies`: those whose `X-Forwarded-For` counts for the address of a caller."""
        self._app = app
        self._keys = keys
        self._limit = limit
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point: 401 without a known key, 429 beyond the limit."""
        if scope["type"] == "http":
            caller = self._caller(scope)
            if caller is None:
                message = "incorrect API key: send `Authorization: Bearer <key>` with a key that the gateway knows"
                problem = HttpError(401, message, kind="authentication_error", code="invalid_api_key")
                await send_response(send, problem_response(problem))
                return
            wait_s = math.ceil(self._limit.wait_s(caller)) if self._limit is not None else 0
            if wait_s:
                message = f"too many requests of this caller in a minute; try again in {wait_s} s"
                problem = HttpError(429, message, kind="rate_limit_error", code="rate_limit_exceeded")
                await send_response(send, problem_response(problem, [(b"retry-after", str(wait_s).encode())]))
                return
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> str | None:
        """The API key, None if it is wrong; without keys the client's address.

        Compares every key, so that the time reveals nothing about them.
        """
        if not self._keys:
            return address_of(scope, self._proxies)
        given = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
        matches = [key for key in self._keys if hmac.compare_digest(key.encode(), given)]
        return matches[0] if matches else None


def address_of(scope: Scope, proxies: Sequence[IPvAnyNetwork]) -> str:
    """The address of a caller: that of the connection, or the one that the nearest trusted proxies report.

    Each proxy adds at the right whom it saw; a caller can invent everything further left.
    """
    address = client_of(scope)
    values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    forwarded = [part.strip() for part in b",".join(values).decode("latin-1").split(",") if part.strip()]
    while forwarded and _is_in(address, proxies):
        address = forwarded.pop()
    return address


def _is_in(address: str, networks: Sequence[IPvAnyNetwork]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
