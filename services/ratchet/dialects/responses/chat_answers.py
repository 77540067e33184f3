"""The members of a chat completion, whole or streamed, from which a response is made."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.core.contract import JsonObject


class Called(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A tool call, or a piece of one: pieces of the same call have the same `index`."""

    index: int | None = None
    id: str | None = None
    function: Called | None = None


class Message(msgspec.Struct):
    """A message, or what a chunk adds to it. vLLM and DeepSeek spell the reasoning differently."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class Candidate(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(Candidate):
    top_logprobs: list[Candidate] | None = None


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    message: Message | None = None
    delta: Message | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ChatAnswer(msgspec.Struct):
    """A chat completion, or a chunk of one."""

    choices: list[Choice] = []
    usage: ChatUsage | None = None
    model: str | None = None
    service_tier: str | None = None


def read_answer(answer: Any) -> ChatAnswer:
    """An engine's JSON, typed; `Any`: it comes from another process. Raises `msgspec.ValidationError`."""
    return msgspec.convert(answer, ChatAnswer)


def response_usage(usage: ChatUsage | None) -> JsonObject | None:
    """The tokens of a call as the Responses API counts them."""
    if usage is None:
        return None
    prompt = usage.prompt_tokens_details or PromptDetails()
    completion = usage.completion_tokens_details or CompletionDetails()
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": prompt.cached_tokens or 0,
            "cache_write_tokens": prompt.cache_write_tokens or 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": completion.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def response_logprobs(entries: list[TokenLogprob]) -> list[JsonObject]:
    """The tokens of a text as the Responses API has them, every member present."""
    return [
        {**_candidate(entry), "top_logprobs": [_candidate(other) for other in entry.top_logprobs or ()]}
        for entry in entries
    ]


def entries_of_text(entries: list[TokenLogprob], text: str, before: str) -> list[TokenLogprob]:
    """The tokens of `text` among those of a whole answer, of which `before` is an earlier text; none when not found."""
    whole = "".join(entry.token for entry in entries)
    start = whole.find(text, whole.find(before) + len(before) if before in whole else 0)
    if not text or start < 0:
        return []
    kept: list[TokenLogprob] = []
    position = 0
    for entry in entries:
        end = position + len(entry.token)
        if position < start + len(text) and end > start:
            kept.append(entry)
        position = end
    return kept


def _candidate(entry: Candidate) -> JsonObject:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes or []}
