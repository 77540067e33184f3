"""Messages of telemetry in OpenAI's form: the parts of the GenAI conventions, those of Vercel's AI SDK, tools.

What OpenAI's form cannot say is left out: calls of tools that a provider ran itself, parts without a content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ratchet.core.contract import JsonObject, decode
from ratchet.dialects.foreign_messages import compact, message_of, role_of
from ratchet.dialects.foreign_values import list_of, object_of, objects_of, parsed_json, text_or_none

_TEXTS = frozenset({"text", "output_text", "input_text"})
_CALLS = frozenset({"tool_call", "tool-call", "tool_use"})
_RESULTS = frozenset({"tool_call_response", "tool-result", "tool_result"})
_KINDS = _TEXTS | _CALLS | _RESULTS | {"reasoning", "blob", "uri", "file"}
_SILENT = _CALLS | {"reasoning"}


def chat_of(value: object) -> list[JsonObject]:
    """A chat of messages with parts, or in OpenAI's form already. Raises `ValueError`."""
    return [message for given in objects_of(value) for message in messages_of(given)]


def coherent(chat: Iterable[JsonObject]) -> list[JsonObject]:
    """A chat as OpenAI's API takes it: the calls of one answer in one message, each with the id that its result names.

    Of the Responses API each call comes as a message of its own; and in a history Traceloop gives a call the id of its
    item, but its result that of the call.
    """
    made: list[JsonObject] = []
    is_joined = False
    for message in chat:
        calls, before = objects_of(message.get("tool_calls")), made[-1] if made else {}
        if not calls or message.get("content") or not message.get("role") == before.get("role") == "assistant":
            made.append(message)
            is_joined = False
            continue
        if not is_joined:
            made[-1] = {**before, "tool_calls": objects_of(before.get("tool_calls"))}
            is_joined = True
        made[-1]["tool_calls"] += calls
    return [_with_ids(made, place) for place in range(len(made))]


def system_of(value: object) -> list[JsonObject]:
    """System instructions, a text or a list of parts, as the first message of a chat; none where they say nothing."""
    parsed = parsed_json(value)
    text = parsed if isinstance(parsed, str) else _joined(objects_of(parsed))
    return [{"role": "system", "content": text}] if text else []


def messages_of(given: JsonObject) -> list[JsonObject]:
    """A message, after the results of tools that it holds: each of those is one of its own. Raises `ValueError`."""
    parts = given.get("parts", given.get("content"))
    made = objects_of(parts) if isinstance(parts, list) else []
    if "parts" in given:  # in `content` another part tells that the message is in OpenAI's or Anthropic's form
        made = [part for part in made if _is_known(part)]
    if not made or not all(map(_is_known, made)):
        return [message_of({"content": None, **given})]
    results = [_result(part) for part in made if part.get("type") in _RESULTS]
    others = [part for part in made if part.get("type") not in _RESULTS]
    if results and not others:
        return results
    role = role_of(given.get("role"))
    message: JsonObject = {"role": role, "content": _content(others)}
    if calls := [call_of(part) for part in others if part.get("type") in _CALLS]:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    reasoning = "".join(str(_text(part)) for part in others if part.get("type") == "reasoning")
    return [*results, message | ({"reasoning_content": reasoning} if reasoning else {})]


def answers_of(value: object) -> list[JsonObject]:
    """The assistant messages of an output: one for each choice. Raises `ValueError`."""
    return [{**message, "role": "assistant"} for message in chat_of(value) if message.get("role") != "tool"]


def call_of(part: Mapping[str, Any]) -> JsonObject:
    """A tool call in OpenAI's form, of a part that spells it in another way. `Any`: as senders write it."""
    arguments = next((part[name] for name in ("arguments", "input", "args") if part.get(name) is not None), {})
    return {
        "id": str(part.get("id") or part.get("toolCallId") or ""),
        "type": "function",
        "function": {
            "name": str(part.get("name") or part.get("toolName") or ""),
            "arguments": arguments if isinstance(arguments, str) else compact(arguments),
        },
    }


def tools_of(value: object) -> list[JsonObject]:
    """Definitions of tools in OpenAI's form: nested, flat (`parameters`, `input_schema`, `inputSchema`), or as text."""
    return [_tool(tool) for item in list_of(value) if (tool := object_of(item))]


def output_of(value: object) -> str | JsonObject | None:
    """What a tool gave back: an object, or a text; LangChain's message of a tool is its content."""
    parsed = parsed_json(value)
    fields = object_of(parsed)
    inner = object_of(object_of(fields.get("output")).get("kwargs")) or object_of(fields.get("output"))
    if "content" in inner and "tool_call_id" in inner:
        return str(inner["content"])
    if fields or parsed is None:
        return fields or None
    if not isinstance(parsed, str):
        return compact(parsed)
    try:
        return decode(parsed, str) if parsed.startswith('"') else parsed  # a text as JSON
    except msgspec.DecodeError:
        return parsed


def _with_ids(chat: Sequence[JsonObject], place: int) -> JsonObject:
    """A message of a chat, whose calls have the ids of the results that follow it, where those name none of them."""
    message, end = chat[place], place + 1
    calls = objects_of(message.get("tool_calls")) if message.get("role") == "assistant" else []
    while calls and end < len(chat) and chat[end].get("role") == "tool":
        end += 1
    named = [str(result.get("tool_call_id") or "") for result in chat[place + 1 : end]]
    if not calls or len(named) != len(calls) or {str(call.get("id")) for call in calls} & {*named}:
        return message
    return {**message, "tool_calls": [{**call, "id": name} for call, name in zip(calls, named, strict=True)]}


def _tool(tool: JsonObject) -> JsonObject:
    if isinstance(tool.get("function"), dict):
        return tool
    parameters = next((tool[name] for name in ("parameters", "input_schema", "inputSchema") if tool.get(name)), None)
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parsed_json(parameters)}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _is_known(part: JsonObject) -> bool:
    """Whether a part is one of these conventions; those of OpenAI's and Anthropic's APIs stay as they are."""
    kind = part.get("type")
    return kind in _KINDS or "content" in part


def _result(part: JsonObject) -> JsonObject:
    names = ("response", "result", "output", "content")
    held: object = next((part[name] for name in names if part.get(name) is not None), "")
    wrapped = object_of(held)
    if wrapped.keys() == {"type", "value"}:  # Vercel: {"type": "json", "value": ...}
        held = wrapped["value"]
    content = held if isinstance(held, str) else compact(held)
    ids = ("id", "tool_use_id", "toolCallId", "tool_call_id")
    call_id = next((str(part[name]) for name in ids if part.get(name)), "")
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _content(parts: Iterable[JsonObject]) -> str | list[JsonObject]:
    """A text where all parts are texts; else parts in OpenAI's form."""
    spoken = [part for part in parts if part.get("type") not in _SILENT]
    media = [made for part in spoken if (made := _medium(part)) is not None]
    if not media:
        return _joined(spoken)
    texts = [{"type": "text", "text": text} for part in spoken if _medium(part) is None and (text := _text(part))]
    return [*texts, *media]


def _medium(part: JsonObject) -> JsonObject | None:
    """An image, a sound or a file as a part in OpenAI's form; None for a text."""
    kind, mime = part.get("type"), str(part.get("mime_type") or part.get("mediaType") or "")
    is_image = part.get("modality") == "image" or mime.startswith("image/")
    if kind == "blob":
        data = text_or_none(part.get("content")) or text_or_none(part.get("data")) or ""
        if is_image:
            return {"type": "image_url", "image_url": {"url": f"data:{mime or 'image/png'};base64,{data}"}}
        if part.get("modality") == "audio" or mime.startswith("audio/"):
            return {"type": "input_audio", "input_audio": {"data": data, "format": mime.partition("/")[2] or "wav"}}
        return {"type": "file", "file": {"file_data": f"data:{mime or 'application/octet-stream'};base64,{data}"}}
    if kind == "uri":
        uri = str(part.get("uri"))
        return {"type": "image_url", "image_url": {"url": uri}} if is_image else {"type": "file", "file": {"url": uri}}
    if kind == "file" and part.get("file_id"):
        return {"type": "file", "file": {"file_id": str(part["file_id"])}}
    return None


def _joined(parts: Iterable[JsonObject]) -> str:
    return "\n".join(text for part in parts if (text := _text(part)))


def _text(part: JsonObject) -> str | None:
    return text_or_none(part.get("content")) or text_or_none(part.get("text"))
