"""Responses of an upstream that serves the API itself, for the turn: as a chat completion, and joined from a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest
from ratchet.dialects.responses.items import answer_message

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEGINS = frozenset({"response.created", "response.queued", "response.in_progress"})
_TEXTS: Mapping[str, tuple[str, str]] = {
    "response.output_text.delta": ("output_text", "text"),
    "response.refusal.delta": ("refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary_text", "text"),
}
"""Events that add to a text -> the part's type, and the part's member."""
_WORDS: Mapping[str, str] = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""Events that add to a call -> the item's member."""
_FINISH: Mapping[object, str] = {"max_output_tokens": "length", "content_filter": "content_filter"}
MAX_ITEMS = 4096
"""Items of one response that a joined stream keeps."""


class InputTokens(msgspec.Struct):
    cached_tokens: int | None = None


class OutputTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


class ResponseUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: InputTokens | None = None
    output_tokens_details: OutputTokens | None = None


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
        answer["usage"] = _chat_usage(native.usage)
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


class ResponseFold:
    """Folds the events of a stream into their response, in at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._room = limit_bytes
        self._response: JsonObject = {}
        self._items: dict[int, JsonObject] = {}
        self._pieces: dict[int, dict[tuple[str, int, str], list[str]]] = {}
        """Of texts in items that have not ended, by the item's place: part's type, part's index, member."""
        self.ended = False
        """The stream has said how the response ended."""

    @property
    def too_large(self) -> bool:
        """The response did not fit: `response` lacks what came after."""
        return self._room < 0

    def feed(self, event: Any, size: int) -> None:
        """Take in an event of so many bytes; `Any`: JSON of another process. What it does not know means nothing."""
        if not isinstance(event, dict) or self.too_large:
            return
        known = cast("JsonObject", event)
        kind = known.get("type")
        if not isinstance(kind, str):
            return
        self._room -= size
        if self.too_large:
            return
        if kind in _ENDS or kind in _BEGINS:
            self._take_response(known.get("response"), ends=kind in _ENDS)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._take_item(known, ends=kind.endswith("done"))
        elif kind in _TEXTS:
            self._take_text(known, *_TEXTS[kind])
        elif kind in _WORDS:
            self._take_text(known, "", _WORDS[kind])

    def response(self) -> JsonObject:
        """The response, of which `output` holds what has come; an upstream's last event may leave it out."""
        if self.ended and isinstance(self._response.get("output"), list):
            return self._response
        output = [_with_texts(item, self._pieces.get(place, {})) for place, item in sorted(self._items.items())]
        return {**self._response, "output": output}

    def _take_response(self, response: object, *, ends: bool) -> None:
        if isinstance(response, dict):
            self._response = cast("JsonObject", response)
            self.ended = self.ended or ends

    def _take_item(self, event: JsonObject, *, ends: bool) -> None:
        place, item = event.get("output_index"), event.get("item")
        if not isinstance(place, int) or not isinstance(item, dict) or len(self._items) >= MAX_ITEMS:
            return
        self._items[place] = cast("JsonObject", item)
        if ends:
            self._pieces.pop(place, None)

    def _take_text(self, event: JsonObject, part: str, member: str) -> None:
        place, text = event.get("output_index"), event.get("delta")
        index = event.get("summary_index" if part == "summary_text" else "content_index", 0)
        if isinstance(place, int) and isinstance(index, int) and isinstance(text, str) and place in self._items:
            self._pieces.setdefault(place, {}).setdefault((part, index, member), []).append(text)


def _with_texts(item: JsonObject, texts: Mapping[tuple[str, int, str], list[str]]) -> JsonObject:
    """The item with the texts that have come for it."""
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


def _chat_usage(usage: ResponseUsage) -> JsonObject:
    given, made = usage.input_tokens_details, usage.output_tokens_details
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": given.cached_tokens if given else None},
        "completion_tokens_details": {"reasoning_tokens": made.reasoning_tokens if made else None},
    }
