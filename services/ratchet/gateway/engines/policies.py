"""An engine that holds our policies by their immutable names: vLLM, or engine_local."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.engines.base import EngineFailed, Post
from ratchet.gateway.engines.refusals import WRONG_KEY, refused
from ratchet.kernel.errors import NotFound, Unavailable
from ratchet.messages.state import PolicyVersion, ServedPolicy
from ratchet.messages.turn import EngineInfo

NAME = "the engine"
"""What errors call it."""
Find = Callable[[str, int], Awaitable[PolicyVersion]]
"""Role and version to the registered policy. Raises `NotFound` or `Unavailable`."""


class PolicyEngine:
    """Asks for a policy by name, and has it loaded when a restart made the engine forget it."""

    def __init__(self, post: Post, info: EngineInfo, find: Find) -> None:
        self._post = post
        self._info = info
        self._find = find

    @property
    def info(self) -> EngineInfo:
        """What turns say of it."""
        return self._info

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Any:
        """The answer's JSON. Raises `EngineFailed`, or `HttpError` for a request that the engine refuses."""
        body = form.upstream(request, policy.name)
        reply = await self._post("/v1" + form.path, body)
        if reply.status == 404:
            await self._load(request.model.role, policy)
            reply = await self._post("/v1" + form.path, body)
        if reply.status in WRONG_KEY:
            raise refused(NAME, reply)
        if reply.status >= 500 or reply.status == 404:
            raise EngineFailed(502, reply.reason, code="engine_failed")
        if reply.status != 200:
            raise reply.refusal()
        return reply.body

    async def _load(self, role: str, policy: ServedPolicy) -> None:
        """Make the policy resident under its immutable name."""
        try:
            version = await self._find(role, policy.version)
        except (NotFound, Unavailable) as error:
            message = f"the engine does not hold {policy.name}, and where it is stored cannot be looked up: {error}"
            raise EngineFailed(502, message, code="engine_unavailable") from error
        loaded = await self._post("/v1/load_lora_adapter", {"lora_name": version.name, "lora_path": version.uri})
        if loaded.status in WRONG_KEY:
            raise refused(NAME, loaded)
        if loaded.status != 200:
            message = f"the engine cannot load {version.name}: {loaded.reason}"
            raise EngineFailed(502, message, code="engine_unavailable")
