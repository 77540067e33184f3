"""Any server of OpenAI's API: vLLM with its own models, Ollama, a provider. It does not hold our policies."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.contract.state import ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.requests import CallRequest, provider_body
from ratchet.gateway.engines.base import BUSY, WRONG_KEY, EngineFailed, Post, Reply, gateway_refused

ANY = "*"
"""Stands for every role that the map of models does not name."""
_MISCONFIGURED = WRONG_KEY | {404, 405}
"""Answers to a wrong key, URL or model name: the agent can correct none of them."""


class OpenAiEngine:
    """Answers for the roles that its map of models names."""

    def __init__(self, post: Post, name: str, models: Mapping[str, str]) -> None:
        self._post = post
        self._name = name
        self._models = models

    @property
    def info(self) -> EngineInfo:
        """The engine as turns name it."""
        return EngineInfo(name=self._name)

    @property
    def roles(self) -> list[str]:
        """Roles that the map names."""
        return [role for role in self._models if role != ANY]

    def policy_for(self, role: str) -> ServedPolicy | None:
        """The model for a role as turns name it: version 0, no digest. None when it serves none."""
        model = self._models.get(role) or self._models.get(ANY)
        return ServedPolicy(version=0, name=f"{self._name}:{model}", digest="") if model else None

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """The server's answer. Raises `EngineFailed`, or `HttpError` for a request that the server refuses."""
        reply = await self._post(form.path, provider_body(request, policy.name.removeprefix(f"{self._name}:")))
        if reply.status >= 500:
            raise EngineFailed(502, f"{self._name}: {reply.reason}", code="engine_failed")
        if reply.status in _MISCONFIGURED:
            raise gateway_refused(self._name, reply)
        if reply.status in BUSY:
            refusal = reply.refusal()
            raise EngineFailed(reply.status, f"{self._name}: {refusal}", code=refusal.code or "engine_busy")
        if reply.status != 200:
            raise reply.refusal()
        return reply
