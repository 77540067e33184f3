"""The engines that serve our policies by their immutable names (vLLM, or engine_local), and which one serves a role.

The name is a policy's address: an engine that does not hold it fetches it, so the gateway loads nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.engine_list import EngineSettings, replica_name
from ratchet.dialects.api_dialect import CHAT, ENGINE_FIELDS, ApiDialect
from ratchet.dialects.messages.dialect import asked_of
from ratchet.dialects.messages.reading import count_body, count_of
from ratchet.dialects.requests import CallRequest
from ratchet.gateway.engines.base import (
    BUSY,
    NOT_NOW,
    WRONG_KEY,
    CallRefused,
    Engine,
    EngineAnswer,
    EngineFailed,
    EventReply,
    NotServed,
    Reply,
    gateway_refused,
    policy_refused,
)
from ratchet.gateway.engines.http_transport import CONNECT_TRIES, Address, HttpTransport
from ratchet.gateway.engines.replicas import Replicas

NAME = "the engine"
"""Its name in errors."""
TOKENIZE = "/tokenize"
"""The path at which the engine tells how many tokens a chat has."""
NO_ROUTE = frozenset({404, 405, 501})
"""Answers of an engine without it."""


class PolicyEngine:
    """Asks for a policy by name."""

    def __init__(self, transport: Replicas, info: EngineInfo, called: str = NAME) -> None:
        """`called`: its name in errors."""
        self._transport = transport
        self._called = called
        self.info = info
        """The engine as turns name it."""

    async def ask(self, dialect: ApiDialect, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:  # noqa: ARG002
        """The engine's answer.

        Raises `EngineFailed`, `CallRefused` for a request that the engine refuses, and `BadRequest` for one that has no
        equivalent in an API that the engine speaks.
        """
        near = request.trajectory_id
        if dialect.translation is not None:
            dialect, request = dialect.translation.to, dialect.translation.request(request)
        body = msgspec.json.encode(ENGINE_FIELDS[dialect.name](request, policy.name))
        send = self._transport.stream if request.stream else self._transport.post
        reply = await send("/v1" + dialect.path, body, request.headers, near=near, dialect=dialect)
        if isinstance(reply, EventReply) or reply.status == 200:
            return EngineAnswer(dialect, request, reply, of_policy=True)
        raise self._problem(dialect.name, reply, policy.name)

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:  # noqa: ARG002
        """See `Engine`: vLLM and engine_local apply the policy's own template and tokenizer."""
        body = msgspec.json.encode(count_body(asked_of(call), policy.name))
        reply = await self._transport.post(TOKENIZE, body)
        if reply.status in NO_ROUTE:
            return None
        if reply.status != 200:
            raise self._problem(CHAT.name, reply, policy.name)
        return count_of(reply.body, "count")

    def _problem(self, api: str, reply: Reply, policy: str) -> EngineFailed | CallRefused:
        problem = self._classified(api, reply, policy)
        problem.replica = reply.replica
        return problem

    def _classified(self, api: str, reply: Reply, policy: str) -> EngineFailed | CallRefused:
        code, failed = reply.member("code"), NotServed if reply.status in NOT_NOW else EngineFailed
        if reply.status in WRONG_KEY:
            return gateway_refused(self._called, reply)
        if policy_refused(reply):
            message = f"{self._called} cannot serve {policy}: {reply.reason}"
            return NotServed(502, message, code="engine_unavailable")
        if reply.status >= 500:
            return failed(502, reply.reason, code="engine_failed")
        if reply.status in BUSY:
            return failed(reply.status, reply.reason, code=code or "engine_busy", reply=reply)
        if code is None and reply.status == 400 and "context length" in reply.reason:  # vLLM's code is the number 400
            return CallRefused(400, reply.reason, code="context_length_exceeded", reply=reply)
        refusal = CallRefused(reply.status, reply.reason, code=code, reply=reply)
        refusal.relayed = api, reply.raw
        return refusal


class NoEngine:
    """Fails in the place of an engine: that of a role that none serves, or of a policy that none can answer for."""

    info = EngineInfo(name="none")

    def __init__(self, failure: EngineFailed | None = None) -> None:
        """`failure`: by default that no engine serves the role; an upstream may answer."""
        self._given = failure

    async def ask(self, dialect: ApiDialect, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:  # noqa: ARG002
        """See `Engine`."""
        raise self._failure(role)

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:  # noqa: ARG002
        """See `Engine`."""
        raise self._failure(role)

    def _failure(self, role: str) -> EngineFailed:
        if self._given is not None:
            return self._given
        message = f"no engine serves the role {role}: the operator can add it to the roles of one (RATCHET_ENGINES)"
        return EngineFailed(502, message, code="engine_unavailable", unreachable=True)


class PolicyEngines:
    """The engines of all roles. Raises `ConfigError` where the environment lacks a key."""

    def __init__(self, engines: Sequence[EngineSettings], *, connect_s: float, answer_s: float, idle_s: float) -> None:
        """How long the gateway waits for engines: see `Address`."""
        address = partial(Address, connect_s=connect_s, answer_s=answer_s, idle_s=idle_s)
        self._transports = list[HttpTransport]()
        self._replicas = dict[str, Replicas]()
        self._engines = dict[str, Engine]()
        """By role."""
        for engine in engines:
            called = NAME if len(engines) == 1 else f"{NAME} {engine.name}"
            key, made = engine.key(), dict[str, HttpTransport]()
            headers = {"authorization": f"Bearer {key}"} if key else {}
            tries = CONNECT_TRIES if len(engine.urls) == 1 else 1  # with several a refused connection goes elsewhere
            for url in engine.urls:
                name = replica_name(url)
                made[name] = HttpTransport(called, address(url, headers, connect_tries=tries), name)
            self._transports += made.values()
            replicas = self._replicas[engine.name] = Replicas(engine.name, made, answer_s, called=called)
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
