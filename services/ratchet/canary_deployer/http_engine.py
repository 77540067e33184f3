"""The inference engine over HTTP: load a policy, ask it something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ratchet.bus.message import decode
from ratchet.canary_deployer.gates.base import Answer, Loaded
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected, Unavailable
from ratchet.service.http_client import AsyncApiClient, Peer, bearer

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that say nothing about the policy."""

MATCHED = "matched"
"""What an engine that compared the probe says of it: engine_local does, vLLM does not."""

ANSWER_TOKENS = 16
"""Enough to see whether output is broken."""


class _Resident(msgspec.Struct, frozen=True):
    id: str = ""
    probe: str | None = None


class _Models(msgspec.Struct, frozen=True):
    data: Sequence[_Resident] = ()


class _Token(msgspec.Struct, frozen=True):
    logprob: float | None


class _Logprobs(msgspec.Struct, frozen=True):
    content: Sequence[_Token]


class _Choice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


def engine_peer(url: str, api_key: str | None) -> Peer:
    """The engine. What it answers otherwise than `PASSING` is about the policy, also when it breaks over it."""
    errors = {**dict.fromkeys(range(400, 600), Rejected), **dict.fromkeys(PASSING, Unavailable)}
    return Peer("the engine", url, bearer(api_key), errors=errors, refusal="{status}: {reason}", quotable=False)


class HttpEngine:
    """vLLM's API subset, as `engine_local` and vLLM itself speak it."""

    def __init__(self, client: AsyncApiClient, load_timeout_s: float) -> None:
        self._client = client
        self._load_timeout_s = load_timeout_s

    async def load(self, policy: PolicyVersion) -> Loaded:
        """Make the policy resident unless it is. Raises `Rejected` or `Unavailable`."""
        known = await self._client.ask("GET", "/v1/models", _Models)
        resident = [model for model in known.data if model.id == policy.name]
        if resident:
            return Loaded(resident[0].probe == MATCHED)
        body = {"lora_name": policy.name, "lora_path": policy.uri}
        content = await self._send("/v1/load_lora_adapter", body, self._load_timeout_s)
        return Loaded(_probe(content) == MATCHED)

    async def ask(self, policy: PolicyVersion, prompt: str) -> Answer:
        """The log-probabilities of a short answer to `prompt`. Raises `Rejected` or `Unavailable`."""
        body = {
            "model": policy.name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "logprobs": True,
            "return_token_ids": True,
        }
        content = await self._send("/v1/chat/completions", body)
        try:
            return Answer([token.logprob for token in decode(content, _Chat).choices[0].logprobs.content])
        except (msgspec.DecodeError, IndexError) as error:
            raise Rejected(f"the engine's answer has no log-probabilities: {error!r}") from error

    async def _send(self, path: str, body: Mapping[str, object], timeout_s: float | None = None) -> bytes:
        return self._client.content_of(await self._client.exchange("POST", path, body=body, timeout_s=timeout_s))


def _probe(content: bytes) -> str | None:
    """What the answer to a load says of the probe; vLLM's is a sentence."""
    try:
        return decode(content, _Resident).probe
    except msgspec.DecodeError:
        return None
