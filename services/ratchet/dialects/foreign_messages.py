"""Messages of other chat formats in OpenAI's form: LangChain's, ShareGPT's, and answers inside other objects."""

from __future__ import annotations

import json
from typing import cast

from ratchet.core.contract import JsonObject
from ratchet.dialects.foreign_values import object_of, objects_of, parsed_json


class UnreadableMessage(ValueError):
    """Why a value is no message."""


ROLES = {
    "human": "user",
    "ai": "assistant",
    "aimessagechunk": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool-call": "assistant",
    "tool-response": "user",
}
"""Roles of other formats, the last two of smolagents, as it sends them to models. One that is in neither is left as it
is, and refused where it is no role."""
KEPT = ("name", "tool_calls", "tool_call_id", "function_call", "refusal", "reasoning_content")
"""Members of an OpenAI message beside role and content."""


def role_of(given: object) -> str:
    """A role as OpenAI's API names it; a message without one is a user's."""
    role = str(given or "user")
    return ROLES.get(role.lower(), role)


def message_of(value: object) -> JsonObject:
    """A message in OpenAI's form. Raises `UnreadableMessage` for what is no message."""
    if not isinstance(value, dict):
        raise UnreadableMessage("holds a message that is not an object")
    fields = cast("JsonObject", value)
    if fields.get("type") == "constructor" and isinstance(fields.get("kwargs"), dict):  # LangChain, serialised
        path = fields.get("id")
        kind = str(path[-1]) if isinstance(path, list) and path else ""
        fields = {"type": kind.lower().removesuffix("chunk").removesuffix("message"), **fields["kwargs"]}
    elif isinstance(fields.get("data"), dict) and "content" in fields["data"]:  # LangChain, as a dict
        fields = {**fields["data"], "type": fields.get("type", fields["data"].get("type"))}
    if "from" in fields and "value" in fields:  # ShareGPT
        fields = {"role": fields["from"], "content": fields["value"]}
    role = fields.get("role") or fields.get("type")
    if not isinstance(role, str):
        raise UnreadableMessage("holds a message without a role")
    message: JsonObject = {"role": role_of(role), "content": fields.get("content")}
    message |= {name: fields[name] for name in KEPT if fields.get(name) is not None}
    calls = objects_of(fields.get("tool_calls")) or objects_of(
        object_of(fields.get("additional_kwargs")).get("tool_calls")
    )
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
        if isinstance(message["content"], list):  # the calls once more, in Anthropic's form
            parts = cast("list[object]", message["content"])
            message["content"] = [part for part in parts if object_of(part).get("type") != "tool_use"] or None
    return message


def chat_of_prompt(value: object) -> list[JsonObject]:
    """The messages of a prompt: a list of them, the list in an object's `messages`, or a text of a user.

    Raises `UnreadableMessage`.
    """
    parsed = parsed_json(value)
    if isinstance(parsed, dict):
        fields = cast("JsonObject", parsed)
        if isinstance(fields.get("messages"), list):
            parsed = fields["messages"]
        elif "role" in fields or "kwargs" in fields:
            parsed = [fields]
        else:
            return [{"role": "user", "content": json.dumps(fields, ensure_ascii=False)}]
    if isinstance(parsed, str):
        return [{"role": "user", "content": parsed}]
    items = cast("list[object]", parsed) if isinstance(parsed, list) else []
    if len(items) == 1 and isinstance(items[0], list):  # LangChain logs a batch of prompts, of one
        items = cast("list[object]", items[0])
    return [{"role": "user", "content": item} if isinstance(item, str) else message_of(item) for item in items]


def answer_of(value: object) -> JsonObject | None:
    """The assistant message of an output, in whatever shell; None when there is none. Raises `UnreadableMessage`."""
    parsed = parsed_json(value)
    for _ in range(8):  # shells within shells: {"generations": [[{"message": {...}}]]}
        if isinstance(parsed, list):
            inner: object = next((item for item in reversed(cast("list[object]", parsed)) if item), None)
        elif isinstance(parsed, dict):
            fields = cast("JsonObject", parsed)
            shells = ("generations", "choices", "message", "messages", "output")
            if (name := next((shell for shell in shells if fields.get(shell)), None)) is None:
                break
            inner = fields[name]
        else:
            break
        parsed = inner
    if isinstance(parsed, str):
        return {"role": "assistant", "content": parsed} if parsed.strip() else None
    if not isinstance(parsed, dict):
        return None
    fields = cast("JsonObject", parsed)
    is_generation = "role" not in fields and "text" in fields and "kwargs" not in fields  # of LangChain: a mere text
    if is_generation or not isinstance(fields.get("role") or fields.get("type"), str):
        text = fields.get("content", fields.get("text"))
        calls = fields.get("tool_calls")
        return {"role": "assistant", "content": text, "tool_calls": calls} if text or calls else None
    return {**message_of(fields), "role": "assistant"}


def tools_of(value: object) -> list[JsonObject]:
    """Tools in OpenAI's form, of a list of them or of their bare functions."""
    tools = objects_of(value)
    return [tool if "function" in tool or "type" in tool else {"type": "function", "function": tool} for tool in tools]


def compact(value: object) -> str:
    """JSON text as models write arguments."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _call(call: JsonObject) -> JsonObject:
    if "function" in call or "args" not in call:
        return call
    try:
        arguments = call["args"] if isinstance(call["args"], str) else compact(call["args"])
    except RecursionError as error:
        raise UnreadableMessage("is nested too deeply") from error
    return {"id": call.get("id"), "type": "function", "function": {"name": call.get("name"), "arguments": arguments}}
