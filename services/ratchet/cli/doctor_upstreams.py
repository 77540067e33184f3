"""What `ratchet doctor` asks the upstreams of the gateway: their lists of models, which cost nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import msgspec
import psutil

from ratchet.bus.message import decode
from ratchet.cli.doctor_checks import Finding, combined, failure, ok, warning
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.started import upstreams_of_stack
from ratchet.core.errors import Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer, Reply, bearer
from ratchet.local.local_stack.catalog import GATEWAY
from ratchet.local.local_stack.providers import GatewayUpstream

ASK_S = 12.0
"""Longest wait for a provider: shorter than the deadline of a check, so that its name stands in the result."""
ANTHROPIC_VERSION = "2023-06-01"
AGAIN = "start the stack again: the gateway reads its upstreams when it starts"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def check_upstreams(endpoints: Endpoints) -> Finding:
    """Whether each upstream answers, takes the key that the gateway has, and offers the models that are set."""
    record = endpoints.record
    gateway = record.services.get(GATEWAY) if record is not None else None
    if record is None or gateway is None:
        return ok("no gateway of a stack here")
    upstreams = upstreams_of_stack(record, endpoints.env)
    if not upstreams:
        return ok("none: a role without a policy gets no answer; `ratchet up --upstream` names one")
    environment = _environment_of(gateway.pid)

    async def ask() -> list[Finding]:
        return list(await asyncio.gather(*(_asked(upstream, environment) for upstream in upstreams)))

    return combined(asyncio.run(ask()))


def _environment_of(pid: int | None) -> Mapping[str, str]:
    """The environment of the gateway, which has the keys; this process's own where that cannot be read."""
    try:
        return os.environ if pid is None else psutil.Process(pid).environ() or os.environ
    except psutil.Error:
        return os.environ


async def _asked(upstream: GatewayUpstream, environment: Mapping[str, str]) -> Finding:
    where = f"{upstream.name} at {upstream.address}"
    key = environment.get(upstream.key_variable) if upstream.key_variable else None
    if upstream.key_variable and not key:
        return failure(f"{where}: {upstream.key_variable} is not set", f"set it, and {AGAIN}")
    if upstream.kind == "anthropic":
        headers = {"anthropic-version": ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}
    elif upstream.kind == "openai":
        headers = bearer(key)
    else:
        return ok(f"{where} was not asked: only its plug-in {upstream.kind} knows how")
    try:
        async with AsyncApiClient(Peer(upstream.name, upstream.base_url, headers, ASK_S)) as client:
            reply = await client.exchange("GET", "/models")
    except Unavailable as error:
        return failure(str(error), f"is its address right, and is it reachable from here? Correct it, and {AGAIN}")
    return _judged(upstream, where, reply)


def _judged(upstream: GatewayUpstream, where: str, reply: Reply) -> Finding:
    """What the status of an answer means. The words of a provider are not shown: they may quote the key."""
    if reply.status in (401, 403):
        if upstream.key_variable is None:
            return failure(f"{where} asks for a key ({reply.status})", f"set RATCHET_UPSTREAM_KEY, and {AGAIN}")
        return failure(
            f"{where} refuses the key in {upstream.key_variable} ({reply.status})", f"set a valid one, and {AGAIN}"
        )
    if reply.status == 429:
        return warning(f"{where} answers, and is at its limit now (429)", "see the limits and the credit of the key")
    if reply.status in (404, 405, 501):
        return warning(
            f"{where} answers, and has no list of models at {upstream.address}/models ({reply.status})",
            "its URL should go down to /v1; a server without such a list may still answer calls",
        )
    if not 200 <= reply.status < 300:
        return failure(f"{where} answers {reply.status}", "its own status page may say more")
    return _offered(upstream, where, reply.content)


def _offered(upstream: GatewayUpstream, where: str, content: bytes) -> Finding:
    key = f" and takes the key in {upstream.key_variable}" if upstream.key_variable else ""
    try:
        models = {model.id for model in decode(content, _Models).data}
    except msgspec.DecodeError:
        return warning(f"{where} answers{key}, but not with a list of models", "is it a server of this API?")
    named = sorted({model for model in upstream.models.values() if model != "*"})
    if absent := [model for model in named if model not in models]:
        return warning(
            f"{where} answers{key}, and does not list {', '.join(absent)}", "correct `models` of the upstream"
        )
    return ok(f"{where} answers{key}; models: {', '.join(named) or len(models)}")
