"""The gateway over HTTP: one answer of one policy, asked for by name, so that it is in no statistic and no training."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.gates.base import LoggedPrompt
from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import Sampling
from ratchet.errors import Rejected, Unavailable

ANSWER_S = 120.0
"""How long one answer may take."""
AGENT = "shadow_replay"
"""Who asks, as the captured turns tell it."""


class HttpGateway:
    """Chat completions by pin."""

    def __init__(self, client: httpx.AsyncClient) -> None:
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
        try:
            answer = await self._client.post(
                "/v1/chat/completions", json=body, headers={"x-ratchet-agent": AGENT}, timeout=ANSWER_S
            )
        except httpx.HTTPError as error:
            raise Unavailable(f"the gateway does not answer: {error!r}") from error
        if not answer.is_success or answer.headers.get("x-ratchet-policy") != policy.name:
            by = answer.headers.get("x-ratchet-policy", "nobody")
            raise Rejected(f"{policy.name} does not answer: {answer.status_code} by {by}")
        return _message(answer.content)


def _message(body: bytes) -> JsonObject:
    try:
        # `Any`: another program's JSON.
        told: Any = msgspec.json.decode(body)
        message = told["choices"][0]["message"]
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError, TypeError) as error:
        raise Rejected(f"the answer holds no message: {error!r}") from error
    if not isinstance(message, dict):
        raise Rejected("the answer holds no message")
    return message
