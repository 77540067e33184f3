"""An engine that serves our policies by their immutable names: vLLM, or engine_local.

The name is a policy's address: an engine that does not hold it fetches it, so the gateway loads nothing.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.service.asgi import Headers
from ratchet.dialects.api_dialect import CHAT, ENGINE_FIELDS, ApiDialect
from ratchet.dialects.messages.dialect import asked_of
from ratchet.dialects.messages.reading import count_body, count_of
from ratchet.dialects.requests import CallRequest
from ratchet.gateway.engines.base import (
    BUSY,
    NOT_NOW,
    WRONG_KEY,
    CallRefused,
    EngineAnswer,
    EngineFailed,
    EventReply,
    NotServed,
    Reply,
    gateway_refused,
    policy_refused,
)

NAME = "the engine"
"""Its name in errors."""
TOKENIZE = "/tokenize"
"""The path at which the engine tells how many tokens a chat has."""
NO_ROUTE = frozenset({404, 405, 501})
"""Answers of an engine without it."""


class EngineTransport(Protocol):
    """The way to an engine. Both methods raise `EngineFailed` when there is no answer, or none of the dialect."""

    async def post(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply:
        """The whole answer, whatever its status; `near`: a trajectory, whose calls profit from one replica."""
        ...

    async def stream(
        self, path: str, body: bytes, headers: Headers = (), *, near: str = "", dialect: ApiDialect | None = None
    ) -> Reply | EventReply:
        """The stream that the engine begins, or its whole answer where it does not stream."""
        ...


class PolicyEngine:
    """Asks for a policy by name."""

    def __init__(self, transport: EngineTransport, info: EngineInfo, called: str = NAME) -> None:
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
        problem = _problem(self._called, api, reply, policy)
        problem.replica = reply.replica
        return problem


def _problem(engine: str, api: str, reply: Reply, policy: str) -> EngineFailed | CallRefused:
    """The problem that an answer with another status than 200 says; `policy` is the name that was asked for."""
    if reply.status in WRONG_KEY:
        return gateway_refused(engine, reply)
    if policy_refused(reply):
        message = f"{engine} cannot serve {policy}: {reply.reason}"
        return NotServed(502, message, code="engine_unavailable")
    failed = NotServed if reply.status in NOT_NOW else EngineFailed
    if reply.status >= 500:
        return failed(502, reply.reason, code="engine_failed")
    code = reply.member("code")
    if reply.status in BUSY:
        return failed(reply.status, reply.reason, code=code or "engine_busy", reply=reply)
    if code is None and reply.status == 400 and "context length" in reply.reason:  # vLLM's code is the number 400
        return CallRefused(400, reply.reason, code="context_length_exceeded", reply=reply)
    refusal = CallRefused(reply.status, reply.reason, code=code, reply=reply)
    refusal.relayed = api, reply.raw
    return refusal
