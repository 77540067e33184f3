"""What the other services say at their health ports, and coordinator and deployer of jobs and rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from ratchet.core.contract.http.console import ServiceOut
from ratchet.core.contract.http.rollouts import RolloutOut, RolloutsOut
from ratchet.core.contract.http.status import StatusOut, TrainingStatusOut
from ratchet.core.service.discovery import WHEN_NEEDED
from ratchet.core.service.health_ports import HealthPorts, Pace, ServiceState
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer
from ratchet.core.service.readiness import in_one_line

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
        self._health = HealthPorts(health_urls, answer_s=answer_s, monotonic=monotonic)
        self._coordinator = AsyncApiClient(Peer("the coordinator", coordinator_url, key, answer_s))
        self._deployer = AsyncApiClient(Peer("the deployer", deployer_url, key, answer_s))
        self._training_pace, self._rollouts_pace = Pace(monotonic), Pace(monotonic)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in (self._health, self._coordinator, self._deployer):
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def states(self) -> list[ServiceOut]:
        """Every service, as it answers now."""
        known = {state.name: _shown(state) for state in await self._health.states()}
        return [known.get(name, _unknown(name)) for name in dict.fromkeys([*SERVICES, *known])]

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


def _shown(state: ServiceState) -> ServiceOut:
    if not state.is_needed:
        return ServiceOut(name=state.name, state=WHEN_NEEDED, reason=None, notes={})
    if state.away is not None:
        return ServiceOut(name=state.name, state="away", reason=state.away, notes={})
    ready = "not ready" if state.reasons else "ready"
    return ServiceOut(name=state.name, state=ready, reason=in_one_line(state.reasons), notes=dict(state.notes))


def _unknown(name: str) -> ServiceOut:
    reason = "RATCHET_CONSOLE_HEALTH_URLS does not have its address"
    return ServiceOut(name=name, state="unknown", reason=reason, notes={})
