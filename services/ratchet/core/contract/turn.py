"""One model call and its answer, as the gateway captured them."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from ratchet.bus.message import JsonObject, Message, Value
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.core.contract.trajectory import PolicyClaim


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


class Constraint(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A grammar that an answer had to follow, as its request asked for it."""

    kind: str
    """`json_schema`, `regex`, `choice`, `grammar`, `structural_tag` or `tools`."""
    specification: str
    """The expression, the rules, or JSON text: what `kind` says."""
    member: str
    """The member of the request that asked for it."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list[int])
    """Tokens that end the answer where the grammar lets it end, beside those of the model."""


UNSERVED, BROKE = "unserved", "broke"
"""How an engine fails a call: it computed nothing of the answer, or broke, or took too long, while it computed."""


class EngineInfo(Value, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    version: str | None = None
    replica: str | None = None
    """Which one of the engine's answered, or failed last."""
    fault: str | None = None
    """What the engine did wrong, where the call failed by it: `unserved`, `broke`."""


class Usage(Value, frozen=True, kw_only=True, omit_defaults=True):
    prompt: int
    completion: int
    cached: int | None = None
    reasoning: int | None = None
    """Output tokens that the model spent on reasoning."""


class Provider(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a provider's answer says about itself."""

    id: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    request_id: str | None = None
    service_tier: str | None = None


class Trace(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's OpenTelemetry context, as it came with the request."""

    trace_id: str
    span_id: str
    baggage: str | None = None


class Trainable(Value, frozen=True, kw_only=True):
    ok: bool
    reason: str | None = None
    """Why not: `no_token_ids`, `no_logprobs`, `count_mismatch`, `top_p`, `constrained`, `redacted`, `error`, ..."""


class TurnSummary(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What the canary's statistics need to know of a turn; it holds no text of the conversation."""

    trajectory_id: str
    timestamp: datetime
    index: int
    arm: str
    version: int
    """The policy that answered."""
    failed: bool = False
    cancelled: bool = False
    latency_ms: float | None = None
    fault: str | None = None
    """What the engine did wrong, as in `EngineInfo`."""


CANCELLED = "cancelled"
"""Finish reason of a call whose agent disconnected before it had the answer."""


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
    """The chat messages after the first `parent_messages` of the parent's conversation, whose last is its response."""
    policy: PolicyClaim
    engine: EngineInfo
    trainable: Trainable
    role: str = DEFAULT_ROLE
    session_id: str | None = None
    agent_id: str | None = None
    user_ref: str | None = None
    attempt: int = 1
    parent_turn_id: str | None = None
    parent_messages: int | None = None
    """Absent: all messages of the parent's conversation. 0: `messages` is the whole prompt, only the link is known."""
    trajectory_by: str | None = None
    """By what the gateway recognised the trajectory: `header`, `run`, `trace`, `tool_call`, `prefix`, `new`, ..."""
    trajectory_name: str | None = None
    """The name that the agent gave the trajectory, where that is no UUID."""
    api: str | None = None
    """`chat`, `completion`, `responses` or `messages`."""
    key_id: str | None = None
    trace: Trace | None = None
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
    parameters: JsonObject | None = None
    """What else the agent asked for, as it sent it: `metadata`, `stop`, `response_format`, `reasoning_effort`, ...; and
    `model` where it named the role otherwise."""
    constraint: Constraint | None = None
    """What the answer was constrained to: log-probabilities are of the distribution after masking."""
    provider: Provider | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    """Of a call that its agent gave up (`finish_reason` is `cancelled`) the time until then: a lower bound."""
    first_token_ms: float | None = None
    """Until the first byte of the answer's content; absent when the engine did not stream."""
    finish_reason: str | None = None
    error: str | None = None
    redactions: dict[str, int] | None = None

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        return self.turn_id

    @property
    def header_summary(self) -> TurnSummary:
        return TurnSummary(
            trajectory_id=self.trajectory_id,
            timestamp=self.timestamp,
            index=self.index,
            arm=self.policy.arm,
            version=self.policy.version,
            failed=self.error is not None,
            cancelled=self.finish_reason == CANCELLED,
            latency_ms=self.latency_ms,
            fault=self.engine.fault,
        )
