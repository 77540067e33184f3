"""The output of a response as it grows out of a chat completion: its items, and the events that tell of them.

A chat message's reasoning, text, refusal and calls become items in the order in which they begin. An item of text ends
where another item begins; calls may grow side by side, so they end with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.core.contract import JsonObject
from ratchet.dialects.responses.chat_answers import (
    Choice,
    Message,
    TokenLogprob,
    ToolCall,
    entries_of_text,
    response_logprobs,
)
from ratchet.dialects.responses.items import COMPACTION, MARK, custom_input
from ratchet.dialects.responses.tools import Offered

TEXT, REFUSAL, REASONING = "output_text", "refusal", "reasoning_text"
"""Kinds of content parts."""
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
INCOMPLETE_REASONS: Mapping[str | None, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`finish_reason` of an answer that was cut off -> the reason in `incomplete_details`."""
_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


@dataclass
class _Part:
    kind: str
    index: int
    pieces: list[str] = field(default_factory=list[str])
    entries: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def shown(self) -> JsonObject:
        whole = "".join(self.pieces)
        if self.kind == REFUSAL:
            return {"type": REFUSAL, "refusal": whole}
        if self.kind == REASONING:
            return {"type": REASONING, "text": whole}
        return {"type": TEXT, "text": whole, "annotations": [], "logprobs": response_logprobs(self.entries)}


@dataclass
class _Call:
    """A tool call that is still growing; without a place in the output until its name is known."""

    call_id: str
    name: str | None = None
    place: int | None = None
    pieces: list[str] = field(default_factory=list[str])


class Output:
    """Grows by the choices of chunks, or by the whole choice."""

    def __init__(self, response_id: str, *, offered: Mapping[str, Offered], logprobs: bool) -> None:
        """`offered`: what its functions stand for. `logprobs`: the agent asked for them."""
        self.items: list[JsonObject] = []
        self.finish_reason: str | None = None
        self._key = response_id.partition("_")[2] or response_id
        self._offered = offered
        self._wants_logprobs = logprobs
        self._entries: list[TokenLogprob] = []
        """Of all tokens, also of those that are no text."""
        self._part: _Part | None = None
        """The open part of the last item; calls begin only after it is closed."""
        self._calls: dict[int, _Call] = {}
        self._events: list[JsonObject] = []

    def add(self, choice: Choice) -> list[JsonObject]:
        """Take in a chunk's choice, or the whole one; the events that tell of it, without their numbers."""
        message = choice.delta or choice.message or Message()
        entries = (choice.logprobs.content if choice.logprobs else None) or [] if self._wants_logprobs else []
        self._entries += entries
        if message.content and (message.reasoning_content or message.reasoning or message.tool_calls):
            entries = entries_of_text(entries, message.content, message.reasoning_content or message.reasoning or "")
        self._add_text(REASONING, message.reasoning_content or message.reasoning)
        self._add_text(TEXT, message.content, entries)
        self._add_text(REFUSAL, message.refusal)
        for call in message.tool_calls or ():
            self._add_call(call)
        self.finish_reason = choice.finish_reason or self.finish_reason
        return self._taken()

    def finish(self) -> list[JsonObject]:
        """End what is open; an answer without anything is a message without text."""
        for call in self._calls.values():
            if call.place is None:
                self._begin_call(call)
        if not self.items:
            self._begin_part(TEXT)
        if self._part is not None and self._part.kind == TEXT and len(self.items) == 1 and not self._part.index:
            self._part.entries = self._entries
        status = INCOMPLETE if self.finish_reason in INCOMPLETE_REASONS else COMPLETED
        last = len(self.items) - 1
        if self._part is not None:
            self._end_text(status)
        for call in self._calls.values():
            self._end_call(call, status if call.place == last else COMPLETED)
        return self._taken()

    def _taken(self) -> list[JsonObject]:
        events, self._events = self._events, []
        return events

    def _emit(self, kind: str, place: int, **members: object) -> None:
        self._events.append({"type": f"response.{kind}", "output_index": place, **members})

    def _begin_item(self, kind: str, **members: object) -> int:
        place = len(self.items)
        item = {"id": f"{_PREFIXES[kind]}_{self._key}_{place}", "type": kind, "status": IN_PROGRESS, **members}
        self.items.append(item)
        self._emit("output_item.added", place, item=dict(item))
        return place

    def _end_item(self, place: int, **members: object) -> None:
        item = self.items[place] = {**self.items[place], **members}
        self._emit("output_item.done", place, item=item)

    def _add_text(self, kind: str, text: str | None, entries: list[TokenLogprob] | None = None) -> None:
        if not text:
            return
        part = self._part
        if part is None or part.kind != kind:
            part = self._begin_part(kind)
        part.pieces.append(text)
        extra: JsonObject = {}
        if kind == TEXT:
            part.entries += entries or ()
            extra = {"logprobs": response_logprobs(entries or [])}
        self._emit_part(f"{kind}.delta", part, delta=text, **extra)

    def _begin_part(self, kind: str) -> _Part:
        """Refusals and texts share a message; reasoning is an item of its own."""
        joins = self._part is not None and REASONING not in (kind, self._part.kind)
        if joins and self._part is not None:
            index = self._part.index + 1
            self._end_part()
        else:
            index = 0
            if self._part is not None:
                self._end_text(COMPLETED)
            if kind == REASONING:
                self._begin_item("reasoning", summary=[], content=[])
            else:
                self._begin_item("message", role="assistant", content=[])
        self._part = part = _Part(kind, index)
        self._emit_part("content_part.added", part, part=part.shown())
        return part

    def _end_part(self) -> None:
        part, item = self._part, self.items[-1]
        if part is None:
            return
        shown = part.shown()
        named = {name: value for name, value in shown.items() if name in ("text", "refusal", "logprobs")}
        self._emit_part(f"{part.kind}.done", part, **named)
        self._emit_part("content_part.done", part, part=shown)
        item["content"] = [*item["content"], shown]
        self._part = None

    def _end_text(self, status: str) -> None:
        self._end_part()
        self._end_item(len(self.items) - 1, status=status)

    def _emit_part(self, kind: str, growing: _Part, **members: object) -> None:
        place = len(self.items) - 1
        self._emit(kind, place, item_id=self.items[place]["id"], content_index=growing.index, **members)

    def _add_call(self, piece: ToolCall) -> None:
        """Pieces name their call by index; engines that leave it out begin a call with its id or name."""
        begins = bool(piece.id or (piece.function and piece.function.name))
        unnamed = len(self._calls) - (0 if begins or not self._calls else 1)
        index = unnamed if piece.index is None else piece.index
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _Call(piece.id or f"call_{self._key}_{index}")
        if piece.function is None:
            return
        if call.place is None and piece.function.name:
            call.name = piece.function.name
            self._begin_call(call)
        if piece.function.arguments:
            call.pieces.append(piece.function.arguments)
            self._emit_arguments(call, piece.function.arguments)

    def _begin_call(self, call: _Call) -> None:
        if self._part is not None:
            self._end_text(COMPLETED)
        named: JsonObject = {"call_id": call.call_id, **self._named(call)}
        if self._is_custom(call):
            call.place = self._begin_item("custom_tool_call", **named, input="")
        else:
            call.place = self._begin_item("function_call", **named, arguments="")
        if call.pieces:
            self._emit_arguments(call, "".join(call.pieces))

    def _emit_arguments(self, call: _Call, text: str) -> None:
        """A custom tool's input is a JSON string in the arguments: it is known only when they are whole."""
        if call.place is not None and not self._is_custom(call):
            item_id = self.items[call.place]["id"]
            self._emit("function_call_arguments.delta", call.place, item_id=item_id, delta=text)

    def _end_call(self, call: _Call, status: str) -> None:
        place, arguments = call.place, "".join(call.pieces)
        if place is None:
            return
        item_id = self.items[place]["id"]
        if self._is_custom(call):
            text = custom_input(arguments)
            self._emit("custom_tool_call_input.delta", place, item_id=item_id, delta=text)
            self._emit("custom_tool_call_input.done", place, item_id=item_id, input=text)
            self._end_item(place, status=status, input=text)
        else:
            named = {"item_id": item_id, "name": self.items[place]["name"], "arguments": arguments}
            self._emit("function_call_arguments.done", place, **named)
            self._end_item(place, status=status, arguments=arguments)

    def _is_custom(self, call: _Call) -> bool:
        offered = self._offered.get(call.name or "")
        return offered is not None and offered.kind == "custom"

    def _named(self, call: _Call) -> JsonObject:
        """The names of the tool that a call's function stands for; a model may call one that does not exist."""
        offered = self._offered.get(call.name or "")
        if offered is None or offered.namespace is None:
            return {"name": call.name or ""}
        return {"name": offered.name, "namespace": offered.namespace.name}


class Compacted:
    """The output of a compaction, which Codex asks a provider for: grows as `Output` does, and is one item in the end.

    The policy gets a message that asks for a summary, and later requests begin with that summary. A provider encrypts
    it; the gateway writes it after `MARK`, so that it knows its own.
    """

    def __init__(self, response_id: str) -> None:
        self.items: list[JsonObject] = []
        self.finish_reason: str | None = None
        self._id = f"cmp_{response_id.partition('_')[2] or response_id}_0"
        self._pieces: list[str] = []

    def add(self, choice: Choice) -> list[JsonObject]:
        """Take in a chunk's choice, or the whole one; there are no events before the summary is whole."""
        message = choice.delta or choice.message or Message()
        self._pieces.append(message.content or "")
        self.finish_reason = choice.finish_reason or self.finish_reason
        return []

    def finish(self) -> list[JsonObject]:
        """The events of the item. An answer without text leaves the agent without an item: it fails, and says so."""
        summary = "".join(self._pieces).strip()
        if not summary:
            return []
        item: JsonObject = {"id": self._id, "type": COMPACTION, "encrypted_content": MARK + summary}
        self.items.append(item)
        kinds = ("response.output_item.added", "response.output_item.done")
        return [{"type": kind, "output_index": 0, "item": item} for kind in kinds]
