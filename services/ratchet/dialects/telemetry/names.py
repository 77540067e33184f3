"""The attributes that say one thing, by dialect: of several that a span has, the first in its row counts.

Dialects: OpenTelemetry's GenAI conventions (`gen_ai.`, with the names that releases have changed), OpenInference
(`llm.`), Traceloop (`traceloop.`), Langfuse (`langfuse.`), Logfire and Pydantic AI, Vercel's AI SDK (`ai.`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.core.contract.spans import AGENT, INFERENCE, OTHER, TOOL
from ratchet.dialects.answers import MOST_TOKENS
from ratchet.dialects.foreign_values import count_of, number_of, object_of, text_or_none
from ratchet.dialects.telemetry.otlp import Attributes

OWN_SCOPE = "ratchet"
"""The instrumentation scope of the spans that Ratchet sends: where they come back, they are no agent's."""
SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Environment variable by which most instrumentations send content, which they leave out by default."""
KINDS: Mapping[str, Mapping[str, str]] = {
    "gen_ai.operation.name": {
        **dict.fromkeys(("chat", "generate_content", "text_completion"), INFERENCE),
        **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow", "plan"), AGENT),
        **dict.fromkeys(("embeddings", "retrieval"), OTHER),
        "execute_tool": TOOL,
    },
    "openinference.span.kind": {"LLM": INFERENCE, "TOOL": TOOL, "AGENT": AGENT},
    "langfuse.observation.type": {"generation": INFERENCE, "tool": TOOL, "agent": AGENT},
    "ai.operationId": {
        **dict.fromkeys(("ai.generateText.doGenerate", "ai.generateObject.doGenerate"), INFERENCE),
        **dict.fromkeys(("ai.streamText.doStream", "ai.streamObject.doStream"), INFERENCE),
        **dict.fromkeys(("ai.generateText", "ai.generateObject", "ai.streamText", "ai.streamObject"), AGENT),
        "ai.toolCall": TOOL,
    },
    "traceloop.span.kind": {"tool": TOOL, "agent": AGENT, "workflow": AGENT},
    "llm.request.type": {"chat": INFERENCE, "completion": INFERENCE},
}
"""By attribute and value, what a span is about; the first attribute whose value is known decides."""

_ASSOCIATED = "traceloop.association.properties."
TEXTS: Mapping[str, tuple[str, ...]] = {
    "model": (
        "gen_ai.response.model",
        "ai.response.model",
        "llm.response.model_name",
        "llm.model_name",
        "langfuse.observation.model.name",
        "gen_ai.request.model",
        "ai.model.id",
    ),
    "response_id": ("gen_ai.response.id", "ai.response.id"),
    "agent": (
        "gen_ai.agent.name",
        "agent.name",
        "agent_name",
        "ai.telemetry.functionId",
        f"{_ASSOCIATED}lc_agent_name",
    ),
    "session": (
        "gen_ai.conversation.id",
        "session.id",
        "langfuse.session.id",
        f"{_ASSOCIATED}session_id",
        f"{_ASSOCIATED}thread_id",
        "ai.telemetry.metadata.sessionId",
        "thread.id",
    ),
    "user": (
        "user.id",
        "enduser.id",
        "langfuse.user.id",
        f"{_ASSOCIATED}user_id",
        "ai.telemetry.metadata.userId",
    ),
    "tool_name": ("gen_ai.tool.name", "tool.name", "ai.toolCall.name"),
    "tool_call_id": ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id"),
    "finish_reason": ("ai.response.finishReason", "llm.finish_reason", "gen_ai.response.finish_reason"),
    "error": ("error.type",),
}
IN_METADATA = {"agent": ("lc_agent_name",), "session": ("session_id", "thread_id")}
"""Members of the JSON object that OpenInference's `metadata` is; they count where no attribute of `TEXTS` does."""
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "prompt": (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
        "ai.usage.inputTokens",
        "ai.usage.promptTokens",
    ),
    "completion": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
        "ai.usage.outputTokens",
        "ai.usage.completionTokens",
    ),
    "cached": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    "reasoning": (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "llm.token_count.completion_details.reasoning",
        "ai.usage.reasoningTokens",
    ),
    "cost_usd": ("gen_ai.usage.cost", "llm.cost.total", "operation.cost", "langfuse.observation.cost_details.total"),
    "first_token_s": ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token"),
    "first_token_ms": ("ai.response.msToFirstChunk",),
    "temperature": ("gen_ai.request.temperature", "ai.settings.temperature"),
    "top_p": ("gen_ai.request.top_p", "ai.settings.topP"),
    "top_k": ("gen_ai.request.top_k", "ai.settings.topK"),
    "presence_penalty": ("gen_ai.request.presence_penalty", "ai.settings.presencePenalty"),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", "ai.settings.frequencyPenalty"),
    "max_tokens": ("gen_ai.request.max_tokens", "ai.settings.maxOutputTokens", "ai.settings.maxTokens"),
    "seed": ("gen_ai.request.seed",),
}
PARAMETERS = ("llm.invocation_parameters", "langfuse.observation.model.parameters")
"""Objects, as JSON text, whose members are values of sampling under OpenAI's names."""
USAGES = ("langfuse.observation.usage_details",)
"""The same of tokens, under the names of any provider."""
SAMPLING = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "max_tokens", "seed")
_USAGE = {
    "prompt": ("input", "input_tokens", "prompt_tokens"),
    "completion": ("output", "output_tokens", "completion_tokens"),
}


def kind_of(attributes: Attributes) -> str | None:
    """What a span is about; None where no attribute says it."""
    for name, kinds in KINDS.items():
        value = attributes.get(name)
        if isinstance(value, str) and value in kinds:
            return kinds[value]
    return None


def text_of(attributes: Attributes, what: str) -> str | None:
    """A text of the table, if the attributes have it."""
    for name in TEXTS[what]:
        if text := text_or_none(attributes.get(name)):
            return text
    metadata = object_of(attributes["metadata"]) if "metadata" in attributes else {}
    return next((text for name in IN_METADATA.get(what, ()) if (text := text_or_none(metadata.get(name)))), None)


def number_in(attributes: Attributes, what: str) -> float | None:
    """A number of the table, if the attributes have it."""
    return next((held for name in NUMBERS[what] if (held := number_of(attributes.get(name))) is not None), None)


def sampling_of(attributes: Attributes) -> dict[str, float]:
    """The values of sampling that are known, by name."""
    given: dict[str, object] = {}
    for name in PARAMETERS:
        given |= object_of(attributes.get(name))
    known = {name: number_of(given.get(name)) for name in SAMPLING}
    known |= {name: value for name in SAMPLING if (value := number_in(attributes, name)) is not None}
    return {name: value for name, value in known.items() if value is not None}


def usage_of(attributes: Attributes) -> dict[str, int]:
    """Tokens by kind, as far as they are known."""
    usage: dict[str, int] = {}
    for name in USAGES:
        given = object_of(attributes.get(name))
        for kind, names in _USAGE.items():
            count = next((count for each in names if (count := count_of(given.get(each))) is not None), None)
            usage |= {kind: count} if count is not None else {}
    for kind in ("prompt", "completion", "cached", "reasoning"):
        count = count_of(number_in(attributes, kind))
        usage |= {kind: count} if count is not None else {}
    return {kind: count for kind, count in usage.items() if count <= MOST_TOKENS}
