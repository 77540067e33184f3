"""One model call and its answer, as the gateway captured them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.traces import BY_SPAN, Trace, span_id_of, trace_id_of
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.values import (
    Amount,
    Candidates,
    Count,
    KeyId,
    Nucleus,
    Ordinal,
    Penalty,
    Positive,
    Role,
    Sha256,
    Share,
    UserRef,
    Uuid,
    listed,
    matching,
)


class PromptTokens(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Prompt token ids as a delta: the first `prefix_length` ids are the parent's prompt + output ids."""

    suffix: list[Count]
    """Ids after the prefix."""
    prefix_length: Count = 0
    """How many ids are shared with the parent's prompt and output."""
    prefix_digest: Sha256 | None = None
    """sha256 of the prefix ids as little-endian int32: it reveals a wrong parent."""


class Sampling(Value, frozen=True, kw_only=True, omit_defaults=True):
    temperature: Amount = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: Nucleus = 1.0
    """Nucleus size; 1 is off."""
    top_k: Candidates | None = None
    """Number of candidates; 0 or -1 is off."""
    min_p: Share | None = None
    """Least probability relative to the likeliest token; 0 is off."""
    presence_penalty: Penalty | None = None
    """OpenAI's presence penalty; 0 is off."""
    frequency_penalty: Penalty | None = None
    """OpenAI's frequency penalty; 0 is off."""
    repetition_penalty: Positive | None = None
    """Multiplicative penalty; 1 is off."""
    seed: int | None = None
    max_tokens: Ordinal | None = None
    """Most tokens to produce."""


class Constraint(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A grammar that an answer had to follow, as its request asked for it."""

    kind: Annotated[
        str, Meta(examples=["json_schema", "regex", "choice", "grammar", "structural_tag", "tools"], min_length=1)
    ]
    """`json_schema`, `regex`, `choice`, `grammar`, `structural_tag` or `tools`."""
    specification: str
    """The expression, the rules, or JSON text: what `kind` says."""
    member: Annotated[str, Meta(examples=["response_format", "tool_choice", "structured_outputs", "tools"])]
    """The member of the request that asked for it."""
    stop_token_ids: list[Count] = msgspec.field(default_factory=list[int])
    """Tokens that end the answer where the grammar lets it end, beside those of the model."""


class Applied(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What the policy's bundle made of a request: how the one that the engine got differs from the agent's.

    All but `digest` are sent with the first turn and whenever `digest` changes.
    """

    digest: Sha256
    """sha256 of the difference."""
    replaced: Count | None = None
    """So many messages at the beginning of the agent's prompt are replaced by `head`."""
    head: list[JsonObject] | None = None
    """The first messages that the engine got: instructions and examples."""
    tools: list[JsonObject] | None = None
    """The tools that the engine got, where they are others; empty where it got none."""
    parameters: JsonObject | None = None
    """Members that the engine got otherwise, as it got them; `null` for one that it did not get."""


UNSERVED, BROKE, NO_MODEL = "unserved", "broke", "no_model"
"""How an engine fails a call: it computed nothing of the answer; it broke, or took too long, while it computed; it does
not have the model that a bundle names, say because that has retired."""
NOT_COMPUTED = frozenset({UNSERVED, NO_MODEL})
"""Faults of an engine that has computed nothing."""


class EngineInfo(Value, frozen=True, kw_only=True, omit_defaults=True):
    name: Annotated[str, Meta(examples=["vllm", "engine_local"])]
    version: str | None = None
    replica: Annotated[str, Meta(examples=["gpu-1:8000"])] | None = None
    """Which one of the engine's answered, or failed last."""
    fault: Annotated[str, listed(UNSERVED, BROKE, NO_MODEL)] | None = None
    """What the engine did wrong, where the call failed by it: `unserved`, `broke`, or `no_model`: the server does not
    have the model that the bundle names."""


class Usage(Value, frozen=True, kw_only=True, omit_defaults=True):
    prompt: Count
    completion: Count
    cached: Count | None = None
    """Prompt tokens served from a cache."""
    reasoning: Count | None = None
    """Output tokens that the model spent on reasoning."""


class Provider(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a provider's answer says about itself."""

    id: str | None = None
    model: str | None = None
    """The model that answered, by the provider's name."""
    fingerprint: str | None = None
    """`system_fingerprint`: the configuration that the model ran with."""
    request_id: str | None = None
    """The provider's `x-request-id` or `request-id`, also of a call that it refused."""
    service_tier: str | None = None
    """The tier that served the call."""


class Trainable(Value, frozen=True, kw_only=True):
    RULES: ClassVar[JsonObject] = {
        "if": {"properties": {"ok": {"const": False}}, "required": ["ok"]},
        "then": {"required": ["reason"]},
    }

    ok: bool
    """True when token ids, log-probabilities and usage agree and sampling was plain."""
    reason: (
        Annotated[
            str,
            Meta(
                examples=[
                    "no_token_ids",
                    "no_logprobs",
                    "count_mismatch",
                    "top_p",
                    "top_k",
                    "penalty",
                    "constrained",
                    "multimodal",
                    "unknown_logprobs",
                    "redacted",
                    "cancelled",
                    "too_large",
                    "invalid",
                    "error",
                ],
                min_length=1,
            ),
        ]
        | None
    ) = None
    """Why not: `no_token_ids`, `no_logprobs`, `count_mismatch`, `top_p`, `constrained`, `redacted`, `error`, ..."""


class TurnSummary(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What the canary's statistics need to know of a turn; it holds no text of the conversation."""

    trajectory_id: Uuid
    """Trajectory the call belongs to."""
    timestamp: datetime
    """When the call was made."""
    index: Count
    """Number of the call within the trajectory, from 0."""
    arm: Annotated[str, listed("stable", "canary", "pinned", "mixed")]
    """Arm of the rollout that answered, as in the turn's `policy`."""
    version: Count
    """The policy that answered."""
    failed: bool = False
    """Whether the turn has an `error`."""
    cancelled: bool = False
    """Whether the agent went away before it had the answer."""
    latency_ms: Amount | None = None
    fault: Annotated[str, listed(UNSERVED, BROKE, NO_MODEL)] | None = None
    """What the engine did wrong, as in `EngineInfo`."""
    unapplied: bool = False
    """Whether the agent had asked for the policy's bundle, and this call does not say that it has applied it."""
    cost_usd: Amount | None = None
    """As in the turn; absent where it is unknown."""


BY_GATEWAY, BY_AGENT, NOT_APPLIED = "gateway", "agent", "none"
"""What wrote a bundle into a request."""
CANCELLED = "cancelled"
"""Finish reason of a call whose agent disconnected before it had the answer."""


class Turn(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """One model call and its answer."""

    TOPIC: ClassVar[str] = "agent.rl.turn.v1"
    RULES: ClassVar[JsonObject] = {
        "if": {
            "properties": {"trainable": {"properties": {"ok": {"const": True}}, "required": ["ok"]}},
            "required": ["trainable"],
        },
        "then": {"required": ["prompt_token_ids", "output_token_ids", "behavior_logprobs"]},
    }

    turn_id: Uuid
    trajectory_id: Uuid
    """Trajectory the call belongs to."""
    timestamp: datetime
    """When the call was made."""
    index: Count
    """0 for the trajectory's first call."""
    request_digest: Sha256
    """sha256 of the request as the agent sent it."""
    messages: list[JsonObject]
    """The chat messages after the first `parent_messages` of the parent's conversation, whose last is its response."""
    policy: PolicyClaim
    """Which policy answered."""
    engine: EngineInfo
    """Which engine answered."""
    trainable: Trainable
    """Whether policy-gradient training may use this call."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    session_id: str | None = None
    """Conversation or run of the host application."""
    agent_id: str | None = None
    user_ref: UserRef | None = None
    """Keyed hash of the end user, never the raw id: opting out and unlearning find the user's data by it."""
    attempt: Ordinal = 1
    """1 for the first try of this call that ended, then 2, 3 ..."""
    parent_turn_id: Uuid | None = None
    """The call whose prompt and response this call continues."""
    parent_messages: Count | None = None
    """Absent: all messages of the parent's conversation. 0: `messages` is the whole prompt, only the link is known."""
    trajectory_by: (
        Annotated[
            str,
            Meta(
                examples=[
                    "header",
                    "path",
                    "run",
                    "trace",
                    "metadata",
                    "session",
                    "prompt_cache_key",
                    "previous_response",
                    "conversation",
                    "tool_call",
                    "prefix",
                    "retry",
                    "new",
                ],
            ),
            matching(r"^[a-z0-9_]{1,64}$"),
        ]
        | None
    ) = None
    """By what the gateway recognised the trajectory: `header`, `run`, `trace`, `tool_call`, `prefix`, `new`, ..."""
    trajectory_name: str | None = None
    """The name that the agent gave the trajectory, where that is no UUID."""
    api: Annotated[str, listed("chat", "completion", "responses", "messages")] | None = None
    """`chat`, `completion`, `responses` or `messages`."""
    key_id: KeyId | None = None
    """Id of the API key that the agent called with, never the key."""
    trace: Trace | None = None
    """The agent's OpenTelemetry context, as it came with the request (W3C Trace Context and Baggage)."""
    tools_digest: Sha256 | None = None
    """sha256 of the tools offered."""
    tools: list[JsonObject] | None = None
    """The tools offered; sent with the first turn and whenever `tools_digest` changes."""
    applied: Applied | None = None
    """How what the engine got differs from what the agent sent; absent where the policy changes nothing of it."""
    applied_by: Annotated[str, listed("gateway", "agent", "none")] | None = None
    """What wrote the policy's bundle into the request: `gateway`, or the `agent`, which had asked for the bundle and
    names it with the call; `none`: an agent that had asked for it names no bundle, or another one. Absent where the
    policy is no bundle."""
    response: JsonObject | None = None
    """The assistant message, in OpenAI's form; absent when the call failed."""
    prompt_token_ids: PromptTokens | None = None
    """Prompt token ids as a delta to the parent turn."""
    output_token_ids: list[Count] | None = None
    """Token ids that the model produced."""
    behavior_logprobs: list[float] | None = None
    """Natural logarithm of the probability with which each output token was sampled."""
    logprob_mode: Annotated[str, listed("processed", "raw")] | None = None
    """`processed` (after temperature, as the sampler used them) or `raw`."""
    sampling: Sampling | None = None
    """How the answer was sampled, as the engine was asked."""
    parameters: (
        Annotated[JsonObject, Meta(examples=[{"reasoning_effort": "low", "stop": ["END"], "tool_choice": "required"}])]
        | None
    ) = None
    """What else the agent asked for, as it sent it: `metadata`, `stop`, `response_format`, `reasoning_effort`, ...; and
    `model` where it named the role otherwise."""
    constraint: Constraint | None = None
    """What the answer was constrained to: log-probabilities are of the distribution after masking."""
    provider: Provider | None = None
    """What the provider's answer says about itself."""
    usage: Usage | None = None
    """Tokens used, as the engine reports them."""
    cost_usd: Amount | None = None
    """What the call cost, in US dollars."""
    latency_ms: Amount | None = None
    """Of a call that its agent gave up (`finish_reason` is `cancelled`) the time until then: a lower bound."""
    first_token_ms: Amount | None = None
    """Until the first byte of the answer's content; absent when the engine did not stream."""
    finish_reason: Annotated[str, Meta(examples=["stop", "length", "tool_calls", "cancelled"])] | None = None
    """Why the engine stopped; `cancelled` when the agent went away before it had the answer."""
    error: str | None = None
    """What went wrong; absent when the call worked."""
    redactions: dict[str, Count] | None = None
    """Number of replacements by type of secret."""

    @property
    def event_id(self) -> str:
        return self.turn_id

    @property
    def span(self) -> Trace:
        """The span that the call is: the agent's own, where its telemetry reports the call; else the gateway's.

        That one is in the agent's trace, or, where the agent has none, in one with the trajectory's id.
        """
        if self.trace is not None and self.trajectory_by == BY_SPAN:
            return msgspec.structs.replace(self.trace, baggage=None)
        trace_id = self.trace.trace_id if self.trace else trace_id_of(self.trajectory_id)
        sampled = self.trace is None or self.trace.sampled
        return Trace(trace_id=trace_id, span_id=span_id_of(self.turn_id), sampled=sampled)

    @property
    def traceparent(self) -> str:
        return self.span.traceparent

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
            unapplied=self.applied_by == NOT_APPLIED,
            cost_usd=self.cost_usd,
        )
