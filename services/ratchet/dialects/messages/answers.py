"""Answers both ways: a chat completion as a message, and a message as the chat answer that a turn records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratchet.core.contract.turn import Usage
from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat import text_of
from ratchet.dialects.answers import Answer, choice_of
from ratchet.dialects.messages.blocks import Obstacles, assistant_message, blocks_of, tool_input
from ratchet.dialects.requests import Body

SIGNATURE = "ratchet"
"""Signs thinking that is not Anthropic's: clients require some text and send it back; the gateway ignores it."""
_STOP_REASONS: Mapping[object, str] = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_FINISH_REASONS: Mapping[object, str] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status; any other is `invalid_request_error` below 500, and `api_error` from there on."""
TOO_LONG = "prompt is too long: "
"""Begins Anthropic's error for a prompt that exceeds the context: agents look for it, and then compact."""


def from_chat(answer: Mapping[str, Any], stops: Sequence[str] = ()) -> Body:
    """The message for a chat completion; `stops`: the stop sequences that the agent sent.

    `Any`: it is JSON from another process. Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or
    `AttributeError` for JSON that is no chat completion.
    """
    choice = choice_of(answer, 0)
    message = choice["message"]
    content: list[Body] = []
    if thought := reasoning_of(message):
        content.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE})
    if text := text_in(message):
        content.append({"type": "text", "text": text})
    calls = message.get("tool_calls") or []
    content += [tool_use(call["id"], call["function"]["name"], call["function"].get("arguments")) for call in calls]
    reason, sequence = stop_of(choice, stops, called=bool(calls), refused=bool(message.get("refusal")))
    return {
        **message_head(answer),
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
    }


def message_head(answer: Mapping[str, Any]) -> Body:
    """A message without content, as a stream begins with it; `answer`: the chat completion, or its first chunk."""
    return {
        "id": "msg_" + str(answer.get("id") or "").removeprefix("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "model": str(answer.get("model") or ""),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of_chat(answer.get("usage")),
    }


def tool_use(call_id: str, name: str, arguments: object) -> Body:
    """The block of a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input(arguments)}


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """The reasoning in a message or delta: servers call it `reasoning_content`, newer ones `reasoning`."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    return thought if isinstance(thought, str) and thought else None


def text_in(message: Mapping[str, Any]) -> str:
    """The text of a message or delta: of a refusal, and its content."""
    refusal = message.get("refusal")
    return (refusal if isinstance(refusal, str) else "") + text_of(message.get("content"))


def stop_of(choice: Mapping[str, Any], stops: Sequence[str], *, called: bool, refused: bool) -> tuple[str, str | None]:
    """Why the model stopped, and at which stop sequence: vLLM names it, other engines do not.

    A model that called a tool stopped for it, also where the engine says `stop`, as for a forced tool.
    """
    finish, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if refused:
        return "refusal", None
    if called and finish in {None, "stop"}:
        return "tool_use", None
    if finish == "stop" and isinstance(sequence, str) and sequence in stops:
        return "stop_sequence", sequence
    return (_STOP_REASONS.get(finish, "end_turn") if isinstance(finish, str) else "end_turn"), None


def usage_of_chat(usage: object) -> Body:
    """Tokens as Anthropic counts them: those that a cache held are no input tokens."""
    counts = cast("Body", usage) if isinstance(usage, dict) else {}
    cached = _count(counts.get("prompt_tokens_details"), "cached_tokens")
    members: Body = {
        "input_tokens": max(0, _count(counts, "prompt_tokens") - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(counts, "completion_tokens"),
    }
    thought = _count(counts.get("completion_tokens_details"), "reasoning_tokens")
    return members | ({"output_tokens_details": {"thinking_tokens": thought}} if thought else {})


def message_of(message: Mapping[str, Any], number: int = 0) -> Answer:
    """Takes the message of an engine that has the Messages API apart, for the turn; its blocks become a chat message.

    `Any`: it is JSON from another process. Raises `TypeError` for JSON that is no message, `IndexError` for another
    choice than the only one.
    """
    if number:
        raise IndexError("a message is one answer")
    if message.get("type") != "message":
        raise TypeError("the answer is no message")
    try:
        spoken = assistant_message(blocks_of(message.get("content"), "content"), Obstacles())
    except BadRequest as error:
        raise TypeError(str(error)) from error
    reason = message.get("stop_reason")
    finish = _FINISH_REASONS.get(reason, "stop") if isinstance(reason, str) else None
    return Answer(message=spoken, usage=_usage_of_message(message.get("usage")), finish_reason=finish)


def _usage_of_message(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    read, made = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    return Usage(
        prompt=_count(usage, "input_tokens") + read + made,
        completion=_count(usage, "output_tokens"),
        cached=read or None,
        reasoning=_count(usage.get("output_tokens_details"), "thinking_tokens") or None,
    )


def _count(counts: object, name: str) -> int:
    value = cast("Body", counts).get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None, request_id: str | None = None
) -> Body:
    """The error as JSON; its code and the member at fault are details, as Anthropic's own codes are."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if code == "context_length_exceeded" and not message.startswith(TOO_LONG):
        message = TOO_LONG + message
    error: Body = {"type": kind, "message": message}
    if details := {name: value for name, value in (("error_code", code), ("param", param)) if value}:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}
