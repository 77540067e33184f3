"""What the other services say at their health ports, and coordinator and deployer of jobs and rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

from ratchet.core.contract.http.console import ServiceOut
from ratchet.core.contract.http.rollouts import RolloutOut, RolloutsOut
from ratchet.core.contract.http.status import StatusOut, TrainingStatusOut
from ratchet.core.errors import Unavailable
from ratchet.core.service.discovery import WHEN_NEEDED, member_state
from ratchet.core.service.http_client import TIMEOUT, AsyncApiClient, Peer, bearer
from ratchet.core.service.readiness import readiness_of

ANSWER_S = 1.8
"""A page waits two seconds for everything; a service gives each of its checks as long."""
SERVICES = (
    "trajectory_collector",
    "reward_computer",
    "rl_coordinator",
    "trainer_worker",
    "gateway",
    "canary_deployer",
)
"""Those of every installation; engines and others are named by the settings."""
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


class HttpServices:
    """The other services. A context manager: it holds their connections."""

    def __init__(
        self,
        health_urls: Mapping[str, str],
        coordinator_url: str,
        deployer_url: str,
        service_key: str | None,
        *,
        answer_s: float = ANSWER_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`health_urls`: by service, its health port; `service_key`: the key to read with."""
        key = bearer(service_key)
        self._health = {name: AsyncApiClient(Peer(name, url, timeout_s=answer_s)) for name, url in health_urls.items()}
        self._coordinator = AsyncApiClient(Peer("the coordinator", coordinator_url, key, answer_s))
        self._deployer = AsyncApiClient(Peer("the deployer", deployer_url, key, answer_s))
        self._health_paces = {name: Pace(monotonic) for name in health_urls}
        self._training_pace, self._rollouts_pace = Pace(monotonic), Pace(monotonic)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in (*self._health.values(), self._coordinator, self._deployer):
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def states(self) -> list[ServiceOut]:
        """Every service, as it answers now."""
        named = [*dict.fromkeys([*SERVICES, *self._health])]
        return [*await asyncio.gather(*(self._state(name) for name in named))]

    async def _state(self, name: str) -> ServiceOut:
        client = self._health.get(name)
        if client is None:
            reason = "RATCHET_CONSOLE_HEALTH_URLS does not have its address"
            return ServiceOut(name=name, state="unknown", reason=reason, notes={})
        try:
            reply = await self._health_paces[name].of(lambda: client.exchange("GET", "/readyz"))
        except Unavailable as error:
            if await asyncio.to_thread(member_state, name) == WHEN_NEEDED:
                return ServiceOut(name=name, state=WHEN_NEEDED, reason=None, notes={})
            return ServiceOut(name=name, state="away", reason=str(error), notes={})
        reason, notes = readiness_of(reply.status, reply.content)
        return ServiceOut(name=name, state="ready" if reason is None else "not ready", reason=reason, notes=notes)

    async def training(self) -> tuple[StatusOut, TrainingStatusOut]:
        """What the coordinator says of jobs and roles. Raises the error of its answer, or `Unavailable`."""
        ask = self._coordinator.ask

        async def both() -> tuple[StatusOut, TrainingStatusOut]:
            return await asyncio.gather(
                ask("GET", "/v1/status", StatusOut), ask("GET", "/v1/status/training", TrainingStatusOut)
            )

        return await self._training_pace.of(both)

    async def rollouts(self) -> Sequence[RolloutOut]:
        """Every role's newest rollout. Raises as `training` does."""
        answer = await self._rollouts_pace.of(lambda: self._deployer.ask("GET", "/v1/rollouts", RolloutsOut))
        return answer.rollouts
