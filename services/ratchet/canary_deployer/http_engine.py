"""The inference engine over HTTP: load a policy, ask it something."""

from __future__ import annotations

from typing import Any, cast

import httpx

from ratchet.canary_deployer.gates.base import Answer, Loaded
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected, Unavailable

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that say nothing about the policy."""

MATCHED = "matched"
"""What an engine that compared the probe says of it: engine_local does, vLLM does not."""

ANSWER_TOKENS = 16
"""Enough to see whether output is broken."""


class HttpEngine:
    """vLLM's API subset, as `engine_local` and vLLM itself speak it."""

    def __init__(self, client: httpx.AsyncClient, load_timeout_s: float) -> None:
        self._client = client
        self._load_timeout_s = load_timeout_s

    async def load(self, policy: PolicyVersion) -> Loaded:
        """Make the policy resident unless it is. Raises `Rejected` or `Unavailable`."""
        known: Any = await self._send("GET", "/v1/models")
        resident = [model for model in known.get("data", []) if model.get("id") == policy.name]
        if resident:
            return Loaded(resident[0].get("probe") == MATCHED)
        wanted = {"lora_name": policy.name, "lora_path": policy.uri}
        answer = await self._send("POST", "/v1/load_lora_adapter", wanted, timeout_s=self._load_timeout_s)
        return Loaded(answer.get("probe") == MATCHED)

    async def ask(self, policy: PolicyVersion, prompt: str) -> Answer:
        """The log-probabilities of a short answer to `prompt`. Raises `Rejected` or `Unavailable`."""
        wanted = {
            "model": policy.name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "logprobs": True,
            "return_token_ids": True,
        }
        body = await self._send("POST", "/v1/chat/completions", wanted)
        try:
            content = body["choices"][0]["logprobs"]["content"]
            return Answer([token["logprob"] for token in content])
        except (KeyError, IndexError, TypeError) as error:
            raise Rejected(f"the engine's answer has no log-probabilities: {error!r}") from error

    async def _send(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> Any:
        """The JSON of an answer; an empty object when it has none."""
        try:
            response = await self._client.request(method, path, json=body, timeout=timeout_s)
        except httpx.HTTPError as error:
            kind = type(error).__name__  # and no more: what it says may quote the answer
            raise Unavailable(f"the engine does not answer at {self._client.base_url}: {kind}") from error
        if response.status_code in PASSING:
            raise Unavailable(f"the engine answers {response.status_code} to {path}")
        if response.is_error:
            raise Rejected(_message(response))
        return _json(response)


def _message(response: httpx.Response) -> str:
    """One line from an error answer: OpenAI's shape, FastAPI's, or plain text."""
    body = _json(response)
    error: object = body.get("error", body.get("detail", body.get("message")))
    if isinstance(error, dict):
        error = cast("dict[str, object]", error).get("message", error)
    return f"{response.status_code}: {error or response.text[:200] or response.reason_phrase}"


def _json(response: httpx.Response) -> Any:  # `Any`: another program's JSON
    try:
        body: Any = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
