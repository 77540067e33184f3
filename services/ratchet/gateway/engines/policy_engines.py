"""The engines that hold our policies: which one serves a role, and how their replicas are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.engine_list import EngineSettings, replica_name
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.requests import CallRequest
from ratchet.gateway.engines.base import Engine, EngineAnswer, EngineFailed
from ratchet.gateway.engines.http_transport import CONNECT_TRIES, Address, HttpTransport
from ratchet.gateway.engines.policies import NAME, PolicyEngine
from ratchet.gateway.engines.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the gateway waits for engines."""

    connect_s: float
    answer_s: float
    idle_s: float


class NoEngine:
    """Fails in the place of the engine of a role that none serves: an upstream may answer."""

    info = EngineInfo(name="none")

    async def ask(self, dialect: ApiDialect, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:  # noqa: ARG002
        """See `Engine`."""
        raise self._failure(role)

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:  # noqa: ARG002
        """See `Engine`."""
        raise self._failure(role)

    def _failure(self, role: str) -> EngineFailed:
        message = f"no engine serves the role {role}: the operator can add it to the roles of one (RATCHET_ENGINES)"
        return EngineFailed(502, message, code="engine_unavailable", unreachable=True)


class PolicyEngines:
    """The engines of all roles. Raises `ConfigError` where the environment lacks a key."""

    def __init__(self, engines: Sequence[EngineSettings], limits: Limits) -> None:
        self._transports = list[HttpTransport]()
        self._replicas = dict[str, Replicas]()
        self._engines = dict[str, Engine]()
        """By role."""
        for engine in engines:
            called = NAME if len(engines) == 1 else f"{NAME} {engine.name}"
            replicas = self._replicas[engine.name] = Replicas(
                engine.name, self._connected(engine, called, limits), limits.answer_s, called=called
            )
            self._engines |= dict.fromkeys(engine.roles, PolicyEngine(replicas, EngineInfo(name=engine.name), called))

    def of(self, role: str) -> Engine:
        """The engine of a role's policies: the one that names it, else the one of all others."""
        return self._engines.get(role) or self._engines.get(ANY_ROLE) or NoEngine()

    async def check_health(self) -> None:
        """Check the replicas that are away, and those that have answered nothing for long."""
        await asyncio.gather(*(replicas.check_health() for replicas in self._replicas.values()))

    async def check(self) -> str | None:
        """Which replicas are away."""
        away = [
            f"{name}: {len(replicas.away)} of {len(replicas)} away ({', '.join(replicas.away)})"
            for name, replicas in self._replicas.items()
            if replicas.away
        ]
        return "; ".join(away) or None

    async def close(self) -> None:
        """Close all connections."""
        for replicas in self._replicas.values():
            await replicas.close()
        for transport in self._transports:
            await transport.close()

    def _connected(self, engine: EngineSettings, called: str, limits: Limits) -> dict[str, HttpTransport]:
        """The ways to the replicas of an engine. With several of them a refused connection is not tried again there."""
        key = engine.key()
        made = dict[str, HttpTransport]()
        for url in engine.urls:
            address = Address(
                url,
                {"authorization": f"Bearer {key}"} if key else {},
                connect_s=limits.connect_s,
                answer_s=limits.answer_s,
                idle_s=limits.idle_s,
                connect_tries=CONNECT_TRIES if len(engine.urls) == 1 else 1,
            )
            made[replica_name(url)] = HttpTransport(called, address, replica_name(url))
        self._transports += made.values()
        return made
