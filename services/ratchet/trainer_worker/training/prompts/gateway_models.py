"""Asks models over the gateway: a call is reserved in the budget first, and a candidate's is changed by its bundle."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.training import TokenPrices
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer, Reply, bearer
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import read_fields
from ratchet.trainer_worker.training.prompts.budget import ONE_CALL, Ledger, tokens_of

ANSWER_S = 300.0
"""How long one answer may take."""
AGENT = "prompts"
"""As turns name who asks."""
REFLECTION_TOKENS = 4096
"""Of the reflector's answer: a system prompt, and what a model thinks before it."""
MOST_TOKENS = 1024
"""Of any other answer that names no limit."""
TEMPLATE_TOKENS = 64
"""Of a chat template around the messages. A token of what they say has at least a byte."""
LIMITS = ("max_completion_tokens", "max_tokens")


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


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


class PaidClient:
    """`http_player.Exchanging`: reserves the most that a call may use, then makes it."""

    def __init__(
        self, http: AsyncApiClient, ledger: Ledger, prices: TokenPrices | None, bundle: Bundle | None = None
    ) -> None:
        """`bundle`: what is changed of each call. Raises `Rejected` for one that could answer none."""
        self._http = http
        self._ledger = ledger
        self._prices = prices
        self._applier = Applier(bundle) if bundle is not None else None

    async def exchange(
        self, method: str, path: str, *, body: JsonObject, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """See `AsyncApiClient`. A call whose answer never came has used its most. Raises `BudgetSpent`."""
        content = msgspec.json.encode(body)
        if self._applier is not None:
            content = msgspec.json.encode(self._applier.apply(CHAT, CHAT.read(read_fields(content))).fields)
        sent: JsonObject = decode(content)
        longest = next((sent[name] for name in LIMITS if name in sent), None)
        if longest is None:
            sent["max_tokens"] = longest = MOST_TOKENS
        most = ONE_CALL + tokens_of(len(content) + TEMPLATE_TOKENS, longest, self._prices)
        await self._ledger.reserve(most)
        used = most
        try:
            reply = await self._http.exchange(method, path, body=sent, headers=headers)
            usage = _usage_of(reply)
            if usage is not None:
                used = ONE_CALL + tokens_of(usage.prompt_tokens, usage.completion_tokens, self._prices)
        finally:
            await self._ledger.settle(most, used)
        return reply

    def content_of(self, reply: Reply) -> bytes:
        """See `AsyncApiClient`."""
        return self._http.content_of(reply)


async def reflection(client: PaidClient, reflector: str, prompt: str) -> str:
    """What the reflector answers. Raises what the gateway's status stands for, and `Rejected` for an empty answer."""
    body: JsonObject = {
        "model": reflector,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": REFLECTION_TOKENS,
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


def _usage_of(reply: Reply) -> _Usage | None:
    """What the answer reports to have used. A refusal has used nothing; None: it does not say."""
    if 400 <= reply.status < 500:
        return _Usage(0, 0)
    try:
        return decode(reply.content, _Answer).usage
    except msgspec.DecodeError:
        return None
