"""Responses of an upstream that serves the API itself, for the turn: as a chat completion, and joined from a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.chat_answers import CompletionDetails, PromptDetails
from ratchet.dialects.responses.items import answer_message

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEGINS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ITEMS = frozenset({"response.output_item.added", "response.output_item.done"})
_TEXTS: Mapping[str, tuple[str, str]] = {
    "response.output_text.delta": ("output_text", "text"),
    "response.refusal.delta": ("refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary_text", "text"),
    "response.function_call_arguments.delta": ("", "arguments"),
    "response.custom_tool_call_input.delta": ("", "input"),
}
"""Events that add to a text -> the type of the part, empty for a call, and the member of the part or call."""
_FINISH: Mapping[object, str] = {"max_output_tokens": "length", "content_filter": "content_filter"}


class ResponseUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: PromptDetails | None = None
    output_tokens_details: CompletionDetails | None = None


class Incomplete(msgspec.Struct):
    reason: str | None = None


class Failure(msgspec.Struct):
    message: str | None = None


class NativeResponse(msgspec.Struct):
    """What the turn needs of a response."""

    output: list[JsonObject] | None = None
    id: str | None = None
    model: str | None = None
    created_at: float | None = None
    status: str | None = None
    usage: ResponseUsage | None = None
    incomplete_details: Incomplete | None = None
    error: Failure | None = None
    service_tier: str | None = None


def to_chat_answer(response: Any) -> JsonObject:
    """A response as the chat completion that says the same; `Any`: JSON of another process.

    Raises `ValueError` for any other JSON, and for a response that failed.
    """
    failure = failure_of(response)
    if failure is not None:
        raise ValueError(failure)
    native = msgspec.convert(response, NativeResponse)
    try:
        message = answer_message(native.output or [])
    except BadRequest as error:
        raise ValueError(str(error)) from error
    answer: JsonObject = {
        "id": native.id,
        "object": "chat.completion",
        "created": int(native.created_at or 0),
        "model": native.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(native, message)}],
    }
    if native.usage is not None:
        given, made = native.usage.input_tokens_details, native.usage.output_tokens_details
        answer["usage"] = {
            "prompt_tokens": native.usage.input_tokens,
            "completion_tokens": native.usage.output_tokens,
            "total_tokens": native.usage.input_tokens + native.usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": given.cached_tokens if given else None},
            "completion_tokens_details": {"reasoning_tokens": made.reasoning_tokens if made else None},
        }
    if native.service_tier is not None:
        answer["service_tier"] = native.service_tier
    return answer


def failure_of(response: Any) -> str | None:
    """Why a response failed, in the upstream's words; None for one that did not. `Any`: JSON of another process.

    Raises `ValueError` for any other JSON.
    """
    native = msgspec.convert(response, NativeResponse)
    if native.error is None and native.status != "failed":
        return None
    return (native.error.message if native.error else None) or "the response failed"


def fold_response(events: Iterable[Body]) -> JsonObject:
    """The response that the events of a stream are; of one that breaks off, with the items and texts that have come.

    What it does not know means nothing. An upstream's last event may leave out the `output`.
    """
    response: JsonObject = {}
    items: dict[int, JsonObject] = {}
    pieces: dict[int, dict[tuple[str, int, str], list[str]]] = {}
    """Of texts in items that have not ended, by the item's place: part's type, part's index, member."""
    ended = False
    for event in events:
        kind, place, item = event.get("type"), event.get("output_index"), event.get("item")
        if not isinstance(kind, str):
            continue
        if (kind in _ENDS or kind in _BEGINS) and isinstance(event.get("response"), dict):
            response, ended = event["response"], ended or kind in _ENDS
        elif kind in _ITEMS and isinstance(place, int) and isinstance(item, dict):
            items[place] = cast("JsonObject", item)
            if kind.endswith("done"):
                pieces.pop(place, None)
        elif kind in _TEXTS and isinstance(place, int) and place in items:
            part, member = _TEXTS[kind]
            index = event.get("summary_index" if part == "summary_text" else "content_index", 0)
            if isinstance(index, int) and isinstance(text := event.get("delta"), str):
                pieces.setdefault(place, {}).setdefault((part, index, member), []).append(text)
    if ended and isinstance(response.get("output"), list):
        return response
    return {**response, "output": [_with_texts(items[place], pieces.get(place, {})) for place in sorted(items)]}


def _with_texts(item: JsonObject, texts: Mapping[tuple[str, int, str], list[str]]) -> JsonObject:
    whole = dict(item)
    for (part, _, member), pieces in sorted(texts.items()):
        text = "".join(pieces)
        if part:
            name = "summary" if part == "summary_text" else "content"
            whole[name] = [*(whole.get(name) or ()), {"type": part, member: text}]
        else:
            whole[member] = text
    return whole


def _finish_reason(native: NativeResponse, message: JsonObject) -> str:
    if native.status == "incomplete":
        reason = native.incomplete_details.reason if native.incomplete_details else None
        return _FINISH.get(reason, "length")
    return "tool_calls" if message.get("tool_calls") else "stop"
