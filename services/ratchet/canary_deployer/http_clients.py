"""The servers that the deployer asks over HTTP beside engines: the gateway and the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.canary_deployer.gates.base import LoggedPrompt, LoggedPrompts
from ratchet.core.contract.http.models import OutcomeTimesOut
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import Sampling
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer

AGENT, HELDOUT_AGENT = "shadow_replay", "heldout_tasks"
"""The gates that ask the gateway, as the captured turns name them."""
ANSWER_S = 120.0
"""How long one answer through the gateway may take."""
OUTCOMES_S = 5.0
"""How long a start waits for the history of outcomes."""
PROMPTS_S = 60.0
"""How long a shadow replay waits for its prompts."""


def gateway_peer(url: str, api_key: str | None, agent: str = AGENT) -> Peer:
    """The gateway, as an agent of that name."""
    return Peer("the gateway", url, {**bearer(api_key), "x-ratchet-agent": agent}, ANSWER_S)


def coordinator_peer(url: str, api_key: str | None) -> Peer:
    """The coordinator, whose refusals are all `Rejected`."""
    errors = dict.fromkeys(range(400, 500), Rejected)
    refusal = "the coordinator refuses: {reason}"
    return Peer("the coordinator", url, bearer(api_key), errors=errors, refusal=refusal, quotable=False)


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


async def complete(gateway: AsyncApiClient, policy: PolicyVersion, prompt: LoggedPrompt) -> JsonObject:
    """The policy's next message, tool calls included as it wrote them: nothing is called.

    The policy is asked for by name, so that its answer is in no statistic and no training. Raises `Rejected` when the
    policy does not answer, `Unavailable` when the gateway does not.
    """
    sampled = {name: prompt.sampling.get(name) for name in Sampling.__struct_fields__}
    body = {
        "model": policy.name,
        "messages": prompt.messages,
        **({"tools": prompt.tools} if prompt.tools else {}),
        **{name: value for name, value in sampled.items() if value is not None},
    }
    reply = await gateway.exchange("POST", "/v1/chat/completions", body=body)
    by = reply.headers.get("x-ratchet-policy", "no policy")
    if reply.status != 200 or by != policy.name:
        raise Rejected(f"{policy.name} does not answer: {reply.status} by {by}")
    try:
        return decode(reply.content, _Chat).choices[0].message
    except (msgspec.DecodeError, IndexError) as error:
        raise Rejected(f"the answer holds no message: {error!r}") from error


class HttpCoordinator:
    """The coordinator's history: how long outcomes took, and prompts that a candidate has not learned from.

    Without an address everything is `Unavailable`.
    """

    def __init__(self, client: AsyncApiClient | None) -> None:
        self._client = client

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> list[float]:
        """Seconds from the start to the first known outcome, of those known within `within_s`.

        Raises `Unavailable`, or `Rejected` with the coordinator's reason.
        """
        path, query = f"/v1/models/{policy.role}/{policy.version}/outcome-times", {"within_s": within_s}
        answer = await self._configured().ask("GET", path, OutcomeTimesOut, query=query, timeout_s=OUTCOMES_S)
        return answer.seconds

    async def prompts(self, candidate: PolicyVersion, limit: int) -> LoggedPrompts:
        """At most `limit` prompts that are newer than the candidate's data. Raises as `outcome_times` does."""
        query = {"role": candidate.role, "version": candidate.version, "limit": limit}
        return await self._configured().ask(
            "GET", "/v1/replay/prompts", LoggedPrompts, query=query, timeout_s=PROMPTS_S
        )

    def _configured(self) -> AsyncApiClient:
        if self._client is None:
            raise Unavailable("the deployer does not know the coordinator (RATCHET_COORDINATOR_URL)")
        return self._client
