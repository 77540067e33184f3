"""How often a caller may call: checked before the gateway reads anything of a body."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from pydantic import IPvAnyNetwork

from ratchet.core.contract.gateway_notes import UseNote
from ratchet.core.service.asgi import (
    AsgiApp,
    Receive,
    Scope,
    Send,
    caller_of,
    client_of,
    problem_response,
    send_response,
)
from ratchet.core.service.problems import HttpError

REMEMBERED_CALLERS = 10_000
"""Beyond them the limit forgets the caller that has been quiet the longest, who then begins with a full bucket."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass(slots=True)
class RateLimit:
    """Lets a caller make so many requests in a minute, at once or spread; a quiet minute fills the bucket again.

    Gateways that share the work tell each other what a key asked, and so each counts the whole; a key that has not
    asked here yet begins with an equal share of its minute. Of an address without a key each counts an equal share.
    """

    monotonic: Callable[[], float]
    gateways: Callable[[], int] = lambda: 1
    """How many are alive, this one included."""
    callers: int = REMEMBERED_CALLERS
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict, init=False)

    def wait_s(self, caller: str, per_minute: float, *, is_key: bool = False) -> float:
        """0 for a request that the caller may make, and it counts; else the seconds until the caller may make one."""
        now, share = self.monotonic(), per_minute / self.gateways()
        per_minute = per_minute if is_key else share
        bucket = self._buckets.setdefault(caller, _Bucket(max(1.0, share), now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self.callers:
            self._buckets.popitem(last=False)
        bucket.tokens = min(max(1.0, per_minute), bucket.tokens + (now - bucket.at) * per_minute / 60)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * 60 / per_minute
        bucket.tokens -= 1
        return 0.0

    def learn(self, use: UseNote) -> None:
        """Count what a key asked of another gateway, once it has asked something here."""
        if use.key_id in self._buckets:
            self._buckets[use.key_id].tokens -= use.requests

    def __len__(self) -> int:
        return len(self._buckets)


@dataclass(frozen=True, slots=True)
class Guard:
    """The rate limits in front of an ASGI application, behind its authentication."""

    app: AsgiApp
    limit: RateLimit
    per_minute: int
    """Requests of a caller whose key sets no limit of its own; 0: without one."""
    used: Callable[[str], None]
    """Takes the id of each key with a limit whose request counts."""
    proxies: Sequence[IPvAnyNetwork] = ()
    """Those whose `X-Forwarded-For` counts for the address of a caller without a key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point: 429 beyond the limit."""
        if scope["type"] == "http" and (wait_s := math.ceil(self._wait_s(scope))):
            message = f"too many requests of this caller in a minute; try again in {wait_s} s"
            code = "rate_limit_exceeded"
            problem = HttpError(429, message, kind="rate_limit_error", code=code, retry_after_s=wait_s)
            await send_response(send, problem_response(problem))
            return
        await self.app(scope, receive, send)

    def _wait_s(self, scope: Scope) -> float:
        caller = caller_of(scope)
        per_minute = caller.limits.requests_per_minute or self.per_minute
        if not per_minute:
            return 0.0
        if caller.key_id is None:
            return self.limit.wait_s(address_of(scope, self.proxies), per_minute)
        wait_s = self.limit.wait_s(caller.key_id, per_minute, is_key=True)
        if not wait_s:
            self.used(caller.key_id)
        return wait_s


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
