"""Any server of OpenAI's API: vLLM with its own models, Ollama, a provider. It does not hold our policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import EngineInfo
from ratchet.core.service.asgi import Headers
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.messages.dialect import COUNT_PATH, MESSAGES
from ratchet.dialects.messages.reading import count_of
from ratchet.dialects.requests import CallRequest, Fields, forwarded_fields, provider_fields
from ratchet.gateway.engines.base import (
    BUSY,
    NOT_NOW,
    WRONG_KEY,
    EngineAnswer,
    EngineError,
    EngineFailed,
    EventReply,
    NotServed,
    Reply,
    Transport,
    gateway_refused,
)

ANY = "*"
"""In a map of models, as a role: every role that it does not name; as a model: the one that the agent asked for."""
NOT_FOUND = 404
_MISSING = frozenset({NOT_FOUND, 405})
"""Answers to a wrong URL or model name, or to an API that the server does not have."""
_NO_MODEL = frozenset({"model_not_found", "DeploymentNotFound"})
"""Codes of an error about the model, which some servers send with another status than 404."""
_AGENTS_OWN = frozenset({"previous_response_not_found", "conversation_not_found", "item_not_found"})
"""Codes of a 404 about something that the agent named."""


class OpenAiEngine:
    """Answers for the roles that its map of models names."""

    def __init__(
        self, transport: Transport, name: str, models: Mapping[str, str], apis: Collection[str] | None = None
    ) -> None:
        """`apis`: the names of the dialects that the server speaks; None: those that need no translation."""
        self._transport = transport
        self._name = name
        self._models = models
        self._apis = apis
        self.info = EngineInfo(name=name)
        """The engine as turns name it."""
        self.roles = [role for role in models if role != ANY]
        """Roles that the map names."""

    def policy_for(self, role: str, asked: str) -> ServedPolicy | None:
        """The model for a role as turns name it: version 0, no digest. None when it serves none."""
        model = self._models.get(role) or self._models.get(ANY)
        if model == ANY:
            model = asked
        return ServedPolicy(version=0, name=f"{self._name}:{model}", digest="") if model else None

    async def ask(self, dialect: ApiDialect, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:  # noqa: ARG002
        """The server's answer. Raises `EngineFailed`, another `EngineError` for a request that the server refuses, and
        `BadRequest` for one that has no equivalent in an API that it speaks."""
        if dialect.translation is not None and dialect.name not in (self._apis or ()):
            dialect, request = dialect.translation.to, dialect.translation.request(request)
        model = policy.name.removeprefix(f"{self._name}:")
        body = msgspec.json.encode(provider_fields(request, model))
        path = f"{dialect.path}?{request.query}" if request.query else dialect.path
        reply = await (self._transport.stream if request.stream else self._transport.post)(path, body, request.headers)
        if isinstance(reply, EventReply) or reply.status == 200:
            return EngineAnswer(dialect, request, reply, of_policy=False)
        raise self._problem(dialect.name, reply, model)

    async def forward(self, path: str, fields: Fields, policy: ServedPolicy, headers: Headers = ()) -> Reply:
        """The answer of a path that answers no calls, to the agent's own members, with status 200.

        Raises `EngineFailed`, or another `EngineError` for a request that the server refuses.
        """
        model = policy.name.removeprefix(f"{self._name}:")
        reply = await self._transport.post(path, msgspec.json.encode(forwarded_fields(fields, model)), headers)
        if reply.status == 200:
            return reply
        raise self._problem(path, reply, model)

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:  # noqa: ARG002
        """See `Engine`: only a server of the Messages API can tell."""
        if MESSAGES.name not in (self._apis or ()):
            return None
        reply = await self.forward(COUNT_PATH, call.fields, policy, call.headers)
        return count_of(reply.body, "input_tokens")

    def _problem(self, api: str, reply: Reply, model: str) -> EngineError:
        code = reply.member("code")
        if (reply.status in WRONG_KEY | _MISSING and code not in _AGENTS_OWN) or code in _NO_MODEL:
            refused = gateway_refused(self._name, reply)
            # Without a code the words tell a wrong model, which they name, from a wrong URL.
            refused.lacks_model = code in _NO_MODEL or (reply.status == NOT_FOUND and model in reply.reason)
            return refused
        is_failure = reply.status >= 500 or reply.status in BUSY
        kind = NotServed if reply.status in NOT_NOW else EngineFailed if is_failure else EngineError
        problem = kind(reply.status, f"{self._name}: {reply.reason}", code=reply.member("code"), reply=reply)
        if isinstance(reply.body, dict):  # not the page of a proxy
            problem.relayed = api, reply.raw
        return problem
