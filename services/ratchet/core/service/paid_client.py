"""Calls of chat models that cost: each reserves the most that it may use before it is made, and gives back the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.training import TokenPrices
from ratchet.core.contract.values import Ordinal
from ratchet.core.rules.call_budget import ONE_CALL, Amounts, tokens_of
from ratchet.core.service.http_client import AsyncApiClient, Reply

MOST_TOKENS = 1024
"""Of an answer to a call that names no limit."""
TEMPLATE_TOKENS = 64
"""Of a chat template around the messages. A token of what they say has at least a byte."""
LIMITS = ("max_completion_tokens", "max_tokens")


Settle = Callable[[Amounts], Awaitable[None]]
"""Says what a call has used, once: the rest of what it had reserved is given back."""


class Ledger(Protocol):
    """What calls use of a budget."""

    async def reserve(self, most: Amounts) -> Settle:
        """Set aside the most that a call may use. Raises `BudgetSpent` where so much is not left."""
        ...


class _Usage(msgspec.Struct, frozen=True):
    """What an answer took: a server that reports 0 tokens of either does not count, and would spend without end."""

    prompt_tokens: Ordinal
    completion_tokens: Ordinal


_NOTHING = _Usage(0, 0)


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class PaidClient:
    """`http_player.Exchanging`: reserves the most that a call may use, then makes it."""

    http: AsyncApiClient
    ledger: Ledger
    prices: TokenPrices | None
    change: Callable[[bytes], bytes] | None = None
    """What becomes of each call's body before it is sent."""

    async def exchange(
        self, method: str, path: str, *, body: JsonObject, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """See `AsyncApiClient`. A call whose answer never came has used its most. Raises `BudgetSpent`."""
        content = msgspec.json.encode(body)
        if self.change is not None:
            content = self.change(content)
        sent: JsonObject = decode(content)
        longest = next((sent[name] for name in LIMITS if name in sent), None)
        if longest is None:
            sent["max_tokens"] = longest = MOST_TOKENS
        most = ONE_CALL + tokens_of(len(content) + TEMPLATE_TOKENS, longest, self.prices)
        settle = await self.ledger.reserve(most)
        used = most
        try:
            reply = await self.http.exchange(method, path, body=sent, headers=headers)
            usage = _usage_of(reply)
            if usage is not None:
                used = ONE_CALL + tokens_of(usage.prompt_tokens, usage.completion_tokens, self.prices)
        finally:
            await settle(used)
        return reply

    def content_of(self, reply: Reply) -> bytes:
        """See `AsyncApiClient`."""
        return self.http.content_of(reply)


def _usage_of(reply: Reply) -> _Usage | None:
    """What the answer reports to have used. A refusal has used nothing; None: it does not say."""
    if 400 <= reply.status < 500:
        return _NOTHING
    try:
        return decode(reply.content, _Answer).usage
    except msgspec.DecodeError:
        return None
