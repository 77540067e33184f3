"""What the other services say at their health ports, and coordinator and deployer of jobs and rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ratchet.console.pace import Pace
from ratchet.core.contract.http.console import ServiceOut
from ratchet.core.contract.http.rollouts import RolloutOut, RolloutsOut
from ratchet.core.contract.http.status import StatusOut, TrainingStatusOut
from ratchet.core.errors import Unavailable
from ratchet.core.service.discovery import WHEN_NEEDED, member_state
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer
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
        return await self._training_pace.of(self._training)

    async def _training(self) -> tuple[StatusOut, TrainingStatusOut]:
        return await asyncio.gather(
            self._coordinator.ask("GET", "/v1/status", StatusOut),
            self._coordinator.ask("GET", "/v1/status/training", TrainingStatusOut),
        )

    async def rollouts(self) -> Sequence[RolloutOut]:
        """Every role's newest rollout. Raises as `training` does."""
        answer = await self._rollouts_pace.of(lambda: self._deployer.ask("GET", "/v1/rollouts", RolloutsOut))
        return answer.rollouts
