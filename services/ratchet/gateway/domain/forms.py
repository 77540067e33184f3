"""The two completion routes as values: how the gateway reads a request, asks an engine, and takes its answer apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ratchet.errors import BadRequest
from ratchet.gateway.domain.answers import (
    MODES,
    Answer,
    Chunks,
    chat_chunks,
    first_choice,
    stream_of,
    text_chunks,
    usage_of,
)
from ratchet.gateway.domain.requests import Body, CallRequest, engine_body, read_call


@dataclass(frozen=True, slots=True)
class Form:
    """One completion route."""

    path: str
    """Below `/v1`, here and at the engine."""
    read: Callable[[Body], CallRequest]
    engine_body: Callable[[CallRequest, str], Body]
    """The request to an engine that holds policies, given the policy's name."""
    answer: Callable[[Mapping[str, Any]], Answer]
    chunks: Chunks
    chunk_object: str
    """`object` of a chunk."""

    def stream(self, request: CallRequest, shown: Body) -> list[bytes]:
        """The events of an answer as the agent sees it."""
        return stream_of(shown, self.chunks, kind=self.chunk_object, include_usage=request.include_usage)


def read_chat(body: Body) -> CallRequest:
    """Checks what the gateway relies on and leaves the rest to the engine. Raises `BadRequest` or `NotFound`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequest("messages must be a non-empty list of objects", param="messages")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadRequest("tools must be a list", param="tools")
    return read_call(body, messages, tools=tools or None, wants_logprobs=bool(body.get("logprobs")))


def chat_engine_body(request: CallRequest, policy: str) -> Body:
    """Asks for the log-probability of every token."""
    return engine_body(request, policy) | {"logprobs": True}


def chat_answer(body: Mapping[str, Any]) -> Answer:
    """Takes an engine's chat completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for any other JSON.
    """
    choice = first_choice(body)
    message = choice["message"]
    if not isinstance(message, dict):
        raise TypeError("the message must be an object")
    if not all(isinstance(call, dict) for call in message.get("tool_calls") or ()):
        raise TypeError("every tool call must be an object")
    entries = (choice.get("logprobs") or {}).get("content")
    return Answer(
        message=message,
        prompt_ids=body.get("prompt_token_ids"),
        output_ids=choice.get("token_ids"),
        logprobs=[entry["logprob"] for entry in entries] if entries is not None else None,
        logprob_mode=MODES.get(body.get("logprobs_mode")),
        usage=usage_of(body),
        finish_reason=choice.get("finish_reason"),
    )


def read_text(body: Body) -> CallRequest:
    """Reads one prompt, as text or token ids; in a turn it is a user message. Raises `BadRequest` or `NotFound`."""
    prompt = _single_prompt(body.get("prompt"))
    logprobs = body.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int)):
        raise BadRequest("logprobs must be an integer", param="logprobs")
    is_text = isinstance(prompt, str)
    return read_call(
        {**body, "prompt": prompt},
        [{"role": "user", "content": prompt if is_text else [{"type": "token_ids", "count": len(prompt)}]}],
        wants_logprobs=logprobs is not None,
        searchable=is_text,
    )


def text_engine_body(request: CallRequest, policy: str) -> Body:
    """Asks for the log-probability of every token (0: without those of other candidates)."""
    body = engine_body(request, policy)
    return body if body.get("logprobs") is not None else {**body, "logprobs": 0}


def text_answer(body: Mapping[str, Any]) -> Answer:
    """Takes an engine's text completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for any other JSON.
    """
    choice = first_choice(body)
    if not isinstance(choice["text"], str):
        raise TypeError("the text must be a string")
    return Answer(
        message={"role": "assistant", "content": choice["text"]},
        prompt_ids=choice.get("prompt_token_ids") or body.get("prompt_token_ids"),
        output_ids=choice.get("token_ids"),
        logprobs=(choice.get("logprobs") or {}).get("token_logprobs"),
        logprob_mode=MODES.get(body.get("logprobs_mode")),
        usage=usage_of(body),
        finish_reason=choice.get("finish_reason"),
    )


def _single_prompt(value: object) -> str | list[int]:
    """A text or token ids, also as the only item of a list. Raises `BadRequest`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        parts = cast("list[object]", value)
        if all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
            return cast("list[int]", parts)
        if len(parts) == 1 and isinstance(parts[0], str | list):
            return _single_prompt(parts[0])
        if len(parts) > 1 and all(isinstance(part, str | list) for part in parts):
            message = "prompt must be one prompt: every answer belongs to one trajectory; send a call for each prompt"
            raise BadRequest(message, param="prompt")
    raise BadRequest("prompt must be a text or a list of token ids", param="prompt")


CHAT = Form("/chat/completions", read_chat, chat_engine_body, chat_answer, chat_chunks, "chat.completion.chunk")
TEXT = Form("/completions", read_text, text_engine_body, text_answer, text_chunks, "text_completion")
FORMS: Mapping[str, Form] = {form.path: form for form in (CHAT, TEXT)}
"""By path."""
