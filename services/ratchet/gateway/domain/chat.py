"""`/v1/chat/completions`: what may be asked, what the engine is asked instead, and its answer taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.errors import BadRequest
from ratchet.gateway.domain.calls import Body, CallRequest, engine_body, first_choice, read_call
from ratchet.gateway.domain.capture import MODES, Answer, usage_of


def read_chat(body: Body) -> CallRequest:
    """Check what the gateway relies on; everything else is the engine's business. Raises `BadRequest`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequest("messages must be a non-empty list of objects", param="messages")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadRequest("tools must be a list", param="tools")
    return read_call(body, messages, tools=tools or None, wants_logprobs=bool(body.get("logprobs")))


def chat_upstream(request: CallRequest, policy: str) -> Body:
    """What the engine is asked: with the log-probability of every token."""
    return engine_body(request, policy) | {"logprobs": True}


def chat_answer(body: Mapping[str, Any]) -> Answer:
    """Take an engine's chat completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for what is no chat completion.
    """
    choice = first_choice(body)
    message = choice["message"]
    if not isinstance(message, dict):
        raise TypeError("a message that is no object")
    if not all(isinstance(call, dict) for call in message.get("tool_calls") or ()):
        raise TypeError("a tool call that is no object")
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
