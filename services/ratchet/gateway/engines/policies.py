"""An engine that holds our policies by their immutable names: vLLM, or engine_local."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ratchet.contract.state import PolicyVersion, ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.errors import NotFound, Unavailable
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.requests import CallRequest
from ratchet.gateway.engines.base import BUSY, WRONG_KEY, CallRefused, EngineFailed, Post, Reply, gateway_refused

NAME = "the engine"
"""Its name in errors."""
FindVersion = Callable[[str, int], Awaitable[PolicyVersion]]
"""Role and version to the registered policy. Raises `NotFound` or `Unavailable`."""


class PolicyEngine:
    """Asks for a policy by name, and loads it when a restart made the engine forget it."""

    def __init__(self, post: Post, info: EngineInfo, find_version: FindVersion) -> None:
        self._post = post
        self._info = info
        self._find_version = find_version
        self._loading: dict[str, asyncio.Future[Reply]] = {}
        """Loads in flight, by the policy's name."""

    @property
    def info(self) -> EngineInfo:
        """The engine as turns name it."""
        return self._info

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """The engine's answer. Raises `EngineFailed`, or `CallRefused` for a request that the engine refuses."""
        body = form.engine_body(request, policy.name)
        reply = await self._post("/v1" + form.path, body)
        if reply.status == 404:
            loaded = await self._load(request.model.role, policy)
            reply = await self._post("/v1" + form.path, body)
            if reply.status == 404 and loaded.status != 200:
                message = f"the engine cannot load {policy.name}: {loaded.reason}; its log has the details"
                raise EngineFailed(502, message, code="engine_unavailable")
        if reply.status in WRONG_KEY:
            raise gateway_refused(NAME, reply)
        if reply.status >= 500 or reply.status == 404:
            raise EngineFailed(502, reply.reason, code="engine_failed")
        if reply.status in BUSY:
            raise EngineFailed(reply.status, reply.reason, code=reply.refusal().code or "engine_busy")
        if reply.status != 200:
            raise reply.refusal(CallRefused)
        return reply

    async def _load(self, role: str, policy: ServedPolicy) -> Reply:
        """Load the policy under its immutable name: once for all calls that wait, also when the first one is cancelled.

        A refusal is not yet a failure: another gateway may have loaded the policy first, and vLLM refuses to load what
        it holds.
        """

        async def load() -> Reply:
            try:
                version = await self._find_version(role, policy.version)
            except (NotFound, Unavailable) as error:
                message = f"the engine does not hold {policy.name}, and the gateway cannot look up its file: {error}"
                raise EngineFailed(502, message, code="engine_unavailable") from error
            loaded = await self._post("/v1/load_lora_adapter", {"lora_name": version.name, "lora_path": version.uri})
            if loaded.status in WRONG_KEY:
                raise gateway_refused(NAME, loaded)
            return loaded

        loading = self._loading.get(policy.name)
        if loading is None:
            loading = self._loading[policy.name] = asyncio.ensure_future(load())
            loading.add_done_callback(lambda _: self._loading.pop(policy.name))
        return await asyncio.shield(loading)
