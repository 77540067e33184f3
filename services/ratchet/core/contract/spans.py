"""Spans of agents' own telemetry (OpenTelemetry), as the gateway took them in: normalised, redacted, not yet a run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from ratchet.bus.message import JsonObject, Value, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.turn import Provider, Sampling, Usage
from ratchet.core.contract.values import (
    NULLABLE,
    Amount,
    Count,
    KeyId,
    Role,
    SpanId,
    Text,
    TraceId,
    UserRef,
    Uuid,
    listed,
)

INFERENCE, TOOL, AGENT, OTHER = "inference", "tool", "agent", "other"
"""What a span is about; `other` are the spans between, which only link the rest."""


class SpanMessage(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a call that came as an event of its own, as before the conventions of 1.37."""

    at: datetime
    message: JsonObject
    """In OpenAI's form."""
    is_answer: bool = False
    """It is the call's answer; else a part of its prompt."""


class Evaluation(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What an evaluator said about the span, or about the response that it names (`gen_ai.evaluation.result`)."""

    at: datetime
    name: Text
    value: float | None = None
    label: str | None = None
    explanation: str | None = None
    response_id: str | None = None
    """The provider's id of the answer that was judged, where the span is not its call."""


class Span(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What one request says of a span: the span itself, once it has ended, or an event about it."""

    span_id: SpanId
    parent_span_id: SpanId | None = None
    name: str = ""
    kind: Annotated[str, listed(INFERENCE, TOOL, AGENT, OTHER)] | None = None
    """`inference` (a model call), `tool`, `agent` or `other`; absent where only an event came that does not say it."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """Absent in what only an event says."""
    is_entry: bool = False
    """Its parent is a span of another service, which may never come."""
    error: str | None = None
    agent: str | None = None
    """Name of the agent that it belongs to."""
    session: str | None = None
    """Conversation or session of the host application."""
    user_ref: UserRef | None = None
    """Keyed hash of the end user."""
    provider: Provider | None = None
    """Which model answered, and the provider's id of the answer."""
    prompt: list[JsonObject] | None = None
    """The chat that the model got, in OpenAI's form."""
    answers: list[JsonObject] | None = None
    """Assistant messages: one for each choice."""
    messages: list[SpanMessage] | None = None
    """Prompt and answer, where they came one by one."""
    tools: list[JsonObject] | None = None
    """The tools that were offered, in OpenAI's form."""
    sampling: Sampling | None = None
    usage: Usage | None = None
    cost_usd: Amount | None = None
    finish_reason: str | None = None
    first_token_ms: Amount | None = None
    tool_name: str | None = None
    """Of a span of a tool."""
    tool_call_id: str | None = None
    tool_output: Annotated[str | JsonObject | None, NULLABLE] = None
    is_recorded: bool = False
    """The call went to this gateway, which has recorded it."""
    evaluations: list[Evaluation] | None = None
    redactions: dict[str, Count] | None = None
    """Number of replacements by type of secret."""


class Spans(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """Spans of one trace that one request brought. They come in any order, in parts, and more than once."""

    TOPIC: ClassVar[str] = "agent.rl.spans.v1"

    batch_id: Uuid
    """Of role, trace, service and content: what is sent again has the same id."""
    trace_id: TraceId
    spans: Annotated[list[Span], Meta(min_length=1)]
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    service: str = ""
    """`service.name` of the sender: another service's span of the same id is another span."""
    key_id: KeyId | None = None
    """Id of the API key that they came with, never the key."""

    @property
    def event_id(self) -> str:
        return self.batch_id

    @property
    def has_root(self) -> bool:
        """Whether a span without a parent has ended."""
        return any(span.ended_at is not None and span.parent_span_id is None for span in self.spans)

    @property
    def has_entry(self) -> bool:
        """Whether a span has ended whose parent is another service's."""
        return any(span.ended_at is not None and span.is_entry for span in self.spans)

    @property
    def calls(self) -> int:
        """Spans, and events of spans, that are about an agent."""
        return sum(span.kind not in (None, OTHER) or span.messages is not None for span in self.spans)

    @property
    def evaluations(self) -> int:
        """Evaluations among them."""
        return sum(len(span.evaluations or ()) for span in self.spans)


def run_id(trace_id: str) -> str:
    """Id of the trajectory that a trace becomes in a role. It is not the trace's own, which calls through the gateway
    get that name the same trace."""
    return named_id("trace", trace_id)
