"""An engine that holds our policies by their immutable names: vLLM, or engine_local."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from ratchet.contract.state import PolicyVersion, ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.errors import NotFound, Unavailable
from ratchet.gateway.domain.anthropic_messages import asked_of, count_body, count_of
from ratchet.gateway.domain.forms import CHAT, ENGINE_FIELDS, Form
from ratchet.gateway.domain.requests import CallRequest
from ratchet.gateway.engines.base import (
    BUSY,
    WRONG_KEY,
    CallRefused,
    EngineAnswer,
    EngineFailed,
    EventReply,
    Reply,
    Transport,
    gateway_refused,
)

NAME = "the engine"
"""Its name in errors."""
TOKENIZE = "/tokenize"
"""The path at which the engine tells how many tokens a chat has."""
NO_ROUTE = frozenset({404, 405, 501})
"""Answers of an engine without it."""
FindVersion = Callable[[str, int], Awaitable[PolicyVersion]]
"""Role and version to the registered policy. Raises `NotFound` or `Unavailable`."""


class PolicyEngine:
    """Asks for a policy by name, and loads it when a restart made the engine forget it."""

    def __init__(self, transport: Transport, info: EngineInfo, find_version: FindVersion) -> None:
        self._transport = transport
        self._info = info
        self._find_version = find_version
        self._loading: dict[str, asyncio.Future[Reply]] = {}
        """Loads in flight, by the policy's name."""

    @property
    def info(self) -> EngineInfo:
        """The engine as turns name it."""
        return self._info

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:
        """The engine's answer; `role` is the policy's.

        Raises `EngineFailed`, `CallRefused` for a request that the engine refuses, and `BadRequest` for one that has no
        equivalent in an API that the engine speaks.
        """
        if form.translation is not None:
            form, request = form.translation.to, form.translation.request(request)
        body = msgspec.json.encode(ENGINE_FIELDS[form.name](request, policy.name))
        send = self._transport.stream if request.stream else self._transport.post
        reply = await send("/v1" + form.path, body, request.headers)
        if isinstance(reply, Reply) and reply.status == 404:
            loaded = await self._load(role, policy)
            reply = await send("/v1" + form.path, body, request.headers)
            if isinstance(reply, Reply) and reply.status == 404 and loaded.status != 200:
                message = f"the engine cannot load {policy.name}: {loaded.reason}; its log has the details"
                raise EngineFailed(502, message, code="engine_unavailable")
        if isinstance(reply, EventReply) or reply.status == 200:
            return EngineAnswer(form, request, reply, of_policy=True)
        raise _problem(form.name, reply)

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:
        """See `Engine`: vLLM and engine_local apply the policy's own template and tokenizer."""
        body = msgspec.json.encode(count_body(asked_of(call), policy.name))
        reply = await self._transport.post(TOKENIZE, body)
        if reply.status == 404:
            await self._load(role, policy)
            reply = await self._transport.post(TOKENIZE, body)
        if reply.status in NO_ROUTE:
            return None
        if reply.status != 200:
            raise _problem(CHAT.name, reply)
        return count_of(reply.body, "count")

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
            body = msgspec.json.encode({"lora_name": version.name, "lora_path": version.uri})
            loaded = await self._transport.post("/v1/load_lora_adapter", body)
            if loaded.status in WRONG_KEY:
                raise gateway_refused(NAME, loaded)
            return loaded

        loading = self._loading.get(policy.name)
        if loading is None:
            loading = self._loading[policy.name] = asyncio.ensure_future(load())
            loading.add_done_callback(lambda _: self._loading.pop(policy.name))
        return await asyncio.shield(loading)


def _problem(api: str, reply: Reply) -> EngineFailed | CallRefused:
    """The problem that an answer with another status than 200 says."""
    if reply.status in WRONG_KEY:
        return gateway_refused(NAME, reply)
    if reply.status >= 500 or reply.status == 404:
        return EngineFailed(502, reply.reason, code="engine_failed")
    code = reply.member("code")
    if reply.status in BUSY:
        return EngineFailed(reply.status, reply.reason, code=code or "engine_busy", reply=reply)
    if code is None and reply.status == 400 and "context length" in reply.reason:  # vLLM's code is the number 400
        return CallRefused(400, reply.reason, code="context_length_exceeded", reply=reply)
    refusal = CallRefused(reply.status, reply.reason, code=code, reply=reply)
    refusal.relayed = api, reply.raw
    return refusal
