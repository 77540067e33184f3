"""Who may call, and how often: asked before any handler."""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ratchet.gateway.domain.rate_limit import RateLimit
from ratchet.kernel.asgi import Answer, HttpError, Request, problem_response

Routed = Callable[[Request, str | None], Awaitable[Answer]]
"""A handler, given the trajectory that the path names."""


@dataclass(frozen=True)
class Guard:
    """API keys and a rate limit, where the gateway has some."""

    keys: frozenset[str]
    limit: RateLimit | None

    async def __call__(self, routed: Routed, trajectory: str | None, request: Request) -> Answer:
        """The handler's answer, or 429. Raises `HttpError` 401."""
        caller = self._caller(request)
        wait_s = self.limit.wait_s(caller) if self.limit is not None else 0.0
        if wait_s:
            problem = HttpError(429, "too many requests", kind="rate_limit_error", code="rate_limit_exceeded")
            return problem_response(problem, [(b"retry-after", str(math.ceil(wait_s)).encode())])
        return await routed(request, trajectory)

    def _caller(self, request: Request) -> str:
        """The API key; without keys the client's address. Every key is compared: the time tells nothing of them."""
        if not self.keys:
            return request.client
        given = (request.header(b"authorization") or "").removeprefix("Bearer ")
        matches = [key for key in self.keys if hmac.compare_digest(key.encode(), given.encode("latin-1"))]
        if not matches:
            raise HttpError(401, "incorrect API key", kind="authentication_error", code="invalid_api_key")
        return matches[0]
