"""Asks models over the gateway; the calls of a candidate are changed by its bundle."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.bundle import Bundle
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.http_client import Peer, bearer
from ratchet.core.service.paid_client import PaidClient
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import read_fields

ANSWER_S = 300.0
"""How long one answer may take."""
AGENT = "prompts"
"""As turns name who asks."""
REFLECTION_TOKENS = 4096
"""Of the reflector's answer: a system prompt, and what a model thinks before it."""


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Chat(msgspec.Struct, frozen=True):
    choices: list[_Choice]


def gateway_peer(url: str, key: str | None, composed_by: str | None = None) -> Peer:
    """The gateway, for calls that are in no statistic and no training. `composed_by`: digest of the policy that is
    asked, whose own texts the gateway then leaves out: those of a candidate stand in their place."""
    headers = {**bearer(key), "x-ratchet-agent": AGENT, "x-ratchet-arm": "pinned"}
    own = {"x-ratchet-bundle": composed_by} if composed_by else {}
    return Peer("the gateway", url, headers | own, ANSWER_S)


def composed(bundle: Bundle) -> Callable[[bytes], bytes]:
    """What the body of a call becomes by a candidate's bundle. Raises `Rejected` for one that could answer none."""
    applier = Applier(bundle)
    return lambda body: msgspec.json.encode(applier.apply(CHAT, CHAT.read(read_fields(body))).fields)


async def reflection(client: PaidClient, reflector: str, prompt: str) -> str:
    """What the reflector answers. Raises what the gateway's status stands for, and `Rejected` for an empty answer."""
    body: JsonObject = {
        "model": reflector,
        "messages": [{"role": "user", "content": prompt}],
        "max_completion_tokens": REFLECTION_TOKENS,  # models that reason take no `max_tokens`
    }
    reply = await client.exchange("POST", "/v1/chat/completions", body=body)
    try:
        message = decode(client.content_of(reply), _Chat).choices[0].message
    except (msgspec.DecodeError, IndexError) as error:
        raise Unavailable(f"the answer of {reflector} holds no message: {type(error).__name__}") from error
    text = message.get("content")
    if not isinstance(text, str) or not text.strip():
        raise Rejected(f"the reflector {reflector} answers without a text: name another model")
    return text
