"""The gateway over HTTP: one answer of one policy, asked for by name, so that it is in no statistic and no training."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.canary_deployer.gates.base import LoggedPrompt
from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import Sampling
from ratchet.errors import Rejected
from ratchet.service.http_client import AsyncApiClient, Peer, bearer

ANSWER_S = 120.0
"""How long one answer may take."""
AGENT = "shadow_replay"
"""Who asks, as the captured turns name it."""


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


def gateway_peer(url: str, api_key: str | None) -> Peer:
    """The gateway, as the agent `AGENT`."""
    return Peer("the gateway", url, {**bearer(api_key), "x-ratchet-agent": AGENT}, ANSWER_S)


class HttpGateway:
    """Chat completions by pin."""

    def __init__(self, client: AsyncApiClient) -> None:
        self._client = client

    async def complete(self, policy: PolicyVersion, prompt: LoggedPrompt) -> JsonObject:
        """The policy's next message, tool calls included as it wrote them: nothing is called.

        Raises `Rejected` when the policy does not answer, `Unavailable` when the gateway does not.
        """
        sampled = {name: prompt.sampling.get(name) for name in Sampling.__struct_fields__}
        body = {
            "model": policy.name,
            "messages": prompt.messages,
            **({"tools": prompt.tools} if prompt.tools else {}),
            **{name: value for name, value in sampled.items() if value is not None},
        }
        reply = await self._client.exchange("POST", "/v1/chat/completions", body=body)
        by = reply.headers.get("x-ratchet-policy", "nobody")
        if reply.status != 200 or by != policy.name:
            raise Rejected(f"{policy.name} does not answer: {reply.status} by {by}")
        try:
            return decode(reply.content, _Chat).choices[0].message
        except (msgspec.DecodeError, IndexError) as error:
            raise Rejected(f"the answer holds no message: {error!r}") from error
