"""What services say at their health ports, asked at a pace that one under load can bear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self, TypeVar

from ratchet.core.errors import Unavailable
from ratchet.core.service.discovery import WHEN_NEEDED, member_state
from ratchet.core.service.http_client import TIMEOUT, AsyncApiClient, Peer
from ratchet.core.service.readiness import state_of

FIRST_S, LONGEST_S = 2.0, 30.0
"""Pauses double from the first to the longest."""

T = TypeVar("T")


class Pace:
    """How often a service that is too slow is asked: after each time that it took too long, a longer pause.

    Pages ask every two seconds. A service under more load than it can take is not helped by questions whose answers
    come after their readers have gone. An answer of any kind ends the pauses; so does a connection that fails.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._slow: Unavailable | None = None
        """Why it is left alone."""
        self._until = 0.0
        self._next_s = FIRST_S

    async def of(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer. Raises what `ask` raises, and during a pause the last error without asking."""
        left_s = self._until - self._monotonic()
        if self._slow is not None and left_s > 0:
            raise Unavailable(f"{self._slow}; it is asked again in {left_s:.0f} s", code=TIMEOUT)
        try:
            answer = await ask()
        except Unavailable as error:
            if error.code == TIMEOUT:
                self._slow = error
                self._until = self._monotonic() + self._next_s
                self._next_s = min(2 * self._next_s, LONGEST_S)
            else:
                self._end()
            raise
        self._end()
        return answer

    def _end(self) -> None:
        self._slow, self._next_s = None, FIRST_S


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service as it answered."""

    name: str
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """By check, why it is not ready."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By check, faults that do not keep it from its work."""
    away: str | None = None
    """Why it did not answer."""
    is_needed: bool = True
    """False of a member of the local stack that starts when a job or a policy needs it."""


class HealthPorts:
    """The health ports of services. A context manager: it holds their connections."""

    def __init__(
        self, urls: Mapping[str, str], *, answer_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`urls`: by service, its health port; `answer_s`: longest wait for one."""
        self._clients = {name: AsyncApiClient(Peer(name, url, timeout_s=answer_s)) for name, url in urls.items()}
        self._paces = {name: Pace(monotonic) for name in urls}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self._clients.values():
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def states(self) -> list[ServiceState]:
        """Every service, as it answers now."""
        return [*await asyncio.gather(*(self._state(name) for name in self._clients))]

    async def _state(self, name: str) -> ServiceState:
        try:
            reply = await self._paces[name].of(lambda: self._clients[name].exchange("GET", "/readyz"))
        except Unavailable as error:
            needed = await asyncio.to_thread(member_state, name) != WHEN_NEEDED
            return ServiceState(name, away=str(error), is_needed=needed)
        return ServiceState(name, *state_of(reply.status, reply.content))
