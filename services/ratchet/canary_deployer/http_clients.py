"""The servers that the deployer asks over HTTP: the inference engine, the gateway, and the coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.canary_deployer.gates.base import Answer, Loaded, LoggedPrompt, LoggedPrompts
from ratchet.contract.http.models import OutcomeTimesOut
from ratchet.contract.state import PolicyVersion
from ratchet.contract.turn import Sampling
from ratchet.errors import Rejected, Unavailable
from ratchet.service.http_client import AsyncApiClient, Peer, bearer

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of the engine that say nothing about the policy."""
MATCHED = "matched"
"""The probe's result at an engine that compared it: engine_local does, vLLM does not."""
ANSWER_TOKENS = 16
"""Enough to see whether output is broken."""
AGENT = "shadow_replay"
"""Who asks the gateway, as the captured turns name it."""
ANSWER_S = 120.0
"""How long one answer through the gateway may take."""
OUTCOMES_S = 5.0
"""How long a start waits for the history of outcomes."""
PROMPTS_S = 60.0
"""How long a shadow replay waits for its prompts."""


def engine_peer(url: str, api_key: str | None) -> Peer:
    """The engine. Every refusal but `PASSING` is about the policy, also when the engine breaks over it."""
    errors = {**dict.fromkeys(range(400, 600), Rejected), **dict.fromkeys(PASSING, Unavailable)}
    return Peer("the engine", url, bearer(api_key), errors=errors, refusal="{status}: {reason}", quotable=False)


def gateway_peer(url: str, api_key: str | None) -> Peer:
    """The gateway, as the agent `AGENT`."""
    return Peer("the gateway", url, {**bearer(api_key), "x-ratchet-agent": AGENT}, ANSWER_S)


def coordinator_peer(url: str, api_key: str | None) -> Peer:
    """The coordinator, whose refusals are all `Rejected`."""
    errors = dict.fromkeys(range(400, 500), Rejected)
    refusal = "the coordinator refuses: {reason}"
    return Peer("the coordinator", url, bearer(api_key), errors=errors, refusal=refusal, quotable=False)


class _Resident(msgspec.Struct, frozen=True):
    id: str = ""
    probe: str | None = None


class _Models(msgspec.Struct, frozen=True):
    data: Sequence[_Resident] = ()


class _Token(msgspec.Struct, frozen=True):
    logprob: float | None


class _Logprobs(msgspec.Struct, frozen=True):
    content: Sequence[_Token]


class _ScoredChoice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs


class _ScoredChat(msgspec.Struct, frozen=True):
    choices: Sequence[_ScoredChoice]


class HttpEngine:
    """vLLM's API subset, as `engine_local` and vLLM itself speak it."""

    def __init__(self, client: AsyncApiClient, load_timeout_s: float) -> None:
        self._client = client
        self._load_timeout_s = load_timeout_s

    async def resolve(self, policy: PolicyVersion) -> Loaded:
        """Ask for the policy by its name, under which the engine finds it. Raises `Rejected` or `Unavailable`."""
        body = {"model": policy.name, "prompt": [0], "max_tokens": 1}
        await self._post("/v1/completions", body, self._load_timeout_s)
        resident = await self._client.ask("GET", "/v1/models", _Models)
        return Loaded(any(model.id == policy.name and model.probe == MATCHED for model in resident.data))

    async def ask(self, policy: PolicyVersion, prompt: str) -> Answer:
        """The log-probabilities of a short answer to `prompt`. Raises `Rejected` or `Unavailable`."""
        body = {
            "model": policy.name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "logprobs": True,
            "return_token_ids": True,
        }
        content = await self._post("/v1/chat/completions", body)
        try:
            return Answer([token.logprob for token in decode(content, _ScoredChat).choices[0].logprobs.content])
        except (msgspec.DecodeError, IndexError) as error:
            raise Rejected(f"the engine's answer has no log-probabilities: {error!r}") from error

    async def _post(self, path: str, body: Mapping[str, object], timeout_s: float | None = None) -> bytes:
        return self._client.content_of(await self._client.exchange("POST", path, body=body, timeout_s=timeout_s))


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


class HttpGateway:
    """Chat completions of one policy, asked for by name, so that they are in no statistic and no training."""

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
