"""An engine that holds our policies by their immutable names: vLLM, or engine_local."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ratchet.contract.state import PolicyVersion, ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.errors import NotFound, Unavailable
from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.engines.base import BUSY, CallRefused, EngineFailed, Post, Reply
from ratchet.gateway.engines.refusals import WRONG_KEY, refused

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
        self._loading: dict[str, asyncio.Future[Reply]] = {}
        """Loads in flight, by the policy's name."""

    @property
    def info(self) -> EngineInfo:
        """What turns say of it."""
        return self._info

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """The engine's answer. Raises `EngineFailed`, or `CallRefused` for a request that the engine refuses."""
        body = form.upstream(request, policy.name)
        reply = await self._post("/v1" + form.path, body)
        if reply.status == 404:
            loaded = await self._load(request.model.role, policy)
            reply = await self._post("/v1" + form.path, body)
            if reply.status == 404 and loaded.status != 200:
                message = f"the engine cannot load {policy.name}: {loaded.reason}"
                raise EngineFailed(502, message, code="engine_unavailable")
        if reply.status in WRONG_KEY:
            raise refused(NAME, reply)
        if reply.status >= 500 or reply.status == 404:
            raise EngineFailed(502, reply.reason, code="engine_failed")
        if reply.status in BUSY:
            raise EngineFailed(reply.status, reply.reason, code=reply.refusal().code or "engine_busy")
        if reply.status != 200:
            raise reply.refusal(CallRefused)
        return reply

    async def _load(self, role: str, policy: ServedPolicy) -> Reply:
        """Make the policy resident under its immutable name: one load at a time, for all who wait for it.

        It goes on when they go away. A refusal is no failure yet: another gateway may have been faster, and vLLM
        refuses what it holds already.
        """
        loading = self._loading.get(policy.name)
        if loading is None:
            loading = self._loading[policy.name] = asyncio.ensure_future(self._told_to_load(role, policy))
            loading.add_done_callback(lambda _: self._loading.pop(policy.name))
        return await asyncio.shield(loading)

    async def _told_to_load(self, role: str, policy: ServedPolicy) -> Reply:
        try:
            version = await self._find(role, policy.version)
        except (NotFound, Unavailable) as error:
            message = f"the engine does not hold {policy.name}, and where it is stored cannot be looked up: {error}"
            raise EngineFailed(502, message, code="engine_unavailable") from error
        loaded = await self._post("/v1/load_lora_adapter", {"lora_name": version.name, "lora_path": version.uri})
        if loaded.status in WRONG_KEY:
            raise refused(NAME, loaded)
        return loaded
