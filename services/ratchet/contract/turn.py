"""One model call and its answer, as the gateway captured them."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus.message import JsonObject, Message, Value
from ratchet.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.contract.trajectory import PolicyClaim


class PromptTokens(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Prompt token ids as a delta: the first `prefix_length` ids are the parent's prompt + output ids."""

    suffix: list[int]
    prefix_length: int = 0
    prefix_digest: str | None = None
    """sha256 of the prefix ids as little-endian int32: it reveals a wrong parent."""


class Sampling(Value, frozen=True, kw_only=True, omit_defaults=True):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


class EngineInfo(Value, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    version: str | None = None


class Usage(Value, frozen=True, kw_only=True, omit_defaults=True):
    prompt: int
    completion: int
    cached: int | None = None


class Trainable(Value, frozen=True, kw_only=True):
    ok: bool
    reason: str | None = None
    """Why not: `no_token_ids`, `no_logprobs`, `count_mismatch`, `top_p`, `constrained`, `redacted`, `error`, ..."""


class Turn(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One model call and its answer."""

    TOPIC: ClassVar[str] = "agent.rl.turn.v1"

    turn_id: str
    trajectory_id: str
    timestamp: datetime
    index: int
    """0 for the trajectory's first call."""
    request_digest: str
    messages: list[JsonObject]
    """The chat messages after the parent turn's response (all of them when there is no parent)."""
    policy: PolicyClaim
    engine: EngineInfo
    trainable: Trainable
    role: str = DEFAULT_ROLE
    session_id: str | None = None
    agent_id: str | None = None
    user_ref: str | None = None
    attempt: int = 1
    parent_turn_id: str | None = None
    tools_digest: str | None = None
    tools: list[JsonObject] | None = None
    """The tools offered; sent with the first turn and whenever `tools_digest` changes."""
    response: JsonObject | None = None
    """The assistant message, in OpenAI's form; absent when the call failed."""
    prompt_token_ids: PromptTokens | None = None
    output_token_ids: list[int] | None = None
    behavior_logprobs: list[float] | None = None
    logprob_mode: str | None = None
    """`processed` (after temperature, as the sampler used them) or `raw`."""
    sampling: Sampling | None = None
    usage: Usage | None = None
    latency_ms: float | None = None
    """Of a call that its agent gave up (`finish_reason` is `cancelled`) the time until then: a lower bound."""
    finish_reason: str | None = None
    error: str | None = None
    redactions: dict[str, int] | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.turn_id
