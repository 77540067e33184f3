"""The messages of a call in the form of OpenTelemetry's conventions: JSON text of messages that consist of parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Turn
from ratchet.core.rules.chat.links import tool_calls
from ratchet.dialects.foreign_values import object_of, objects_of


def input_of(turn: Turn) -> str:
    """What the call added to the prompt: of a call that continues another one, the rest is in that one's span."""
    return _text([_message(message) for message in turn.messages])


def output_of(turn: Turn) -> str | None:
    """What was answered; None without an answer."""
    if turn.response is None:
        return None
    answer = _message({**turn.response, "role": "assistant"})
    return _text([{**answer, "finish_reason": turn.finish_reason or "stop"}])


def _text(messages: Sequence[JsonObject]) -> str:
    return msgspec.json.encode(messages).decode()


def _message(message: JsonObject) -> JsonObject:
    """A message in OpenAI's form as one of parts."""
    return {"role": message.get("role") or "user", "parts": list(_parts(message))}


def _parts(message: JsonObject) -> Iterator[JsonObject]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if thought := message.get("reasoning_content"):
        yield {"type": "reasoning", "content": thought}
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        yield {"type": "text", "content": part.get("text")} if is_text else part
    for call in objects_of(tool_calls(message)):
        asked = object_of(call.get("function"))
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": asked.get("name"),
            "arguments": asked.get("arguments"),
        }
