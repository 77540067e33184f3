"""Streams both ways: a chat completion's chunks as the events of a message, and a message's events as the message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ratchet.dialects.messages.answers import (
    SIGNATURE,
    error_body,
    message_head,
    reasoning_of,
    stop_of,
    text_in,
    usage_of_chat,
)
from ratchet.dialects.messages.blocks import tool_input
from ratchet.dialects.requests import Body
from ratchet.dialects.streams import Problem

_DELTAS: Mapping[str, tuple[str, str]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""Type of a delta -> its member, and the member of the block that it continues."""


def sse(event: Mapping[str, Any]) -> bytes:
    """One server-sent event, under the name of its type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def error_event(problem: Problem) -> bytes:
    """The event of an error within a stream."""
    error = problem.error
    return sse(error_body(problem.status, error.message, code=error.code, param=error.param))


@dataclass(slots=True)
class MessageStream:
    """Turns chunks into events as they come: `feed` takes each of them, and `finish` or `fail` ends the message."""

    stops: Sequence[str] = ()
    """The stop sequences that the agent sent."""
    _begun: bool = False
    _open: str | None = None
    """The kind of the block that it writes, which is the last one."""
    _blocks: int = 0
    _calls: dict[int, tuple[object, int]] = field(default_factory=dict[int, tuple[object, int]])
    """By place: the call's id, and its block."""
    _usage: object = None
    _ending: dict[str, Any] = field(default_factory=dict[str, Any])
    _refused: bool = False

    def feed(self, chunk: Mapping[str, Any]) -> list[bytes]:
        """The events of one chunk. `Any`: it is JSON from another process.

        Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for JSON that is no chunk.
        """
        events: list[Body] = [] if self._begun else self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue  # an agent of this API asks for one answer
            delta: Mapping[str, Any] = choice.get("delta") or {}
            if thought := reasoning_of(delta):
                events += self._piece("thinking", {"type": "thinking_delta", "thinking": thought})
            if text := text_in(delta):
                events += self._piece("text", {"type": "text_delta", "text": text})
            self._refused = self._refused or bool(delta.get("refusal"))
            for call in delta.get("tool_calls") or ():
                events += self._call(call)
            self._ending |= {name: choice[name] for name in ("finish_reason", "stop_reason") if choice.get(name)}
        return [sse(event) for event in events]

    def finish(self) -> list[bytes]:
        """The events that end the message."""
        events = ([] if self._begun else self._start({})) + self._close()
        reason, sequence = stop_of(self._ending, self.stops, called=bool(self._calls), refused=self._refused)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        events.append({"type": "message_delta", "delta": delta, "usage": usage_of_chat(self._usage)})
        return [sse(event) for event in (*events, {"type": "message_stop"})]

    def fail(self, problem: Problem) -> list[bytes]:
        """The event that says why the message breaks off."""
        return [error_event(problem)]

    def _start(self, chunk: Mapping[str, Any]) -> list[Body]:
        self._begun = True
        return [{"type": "message_start", "message": message_head(chunk)}]

    def _piece(self, kind: str, delta: Body) -> list[Body]:
        """More of the open block, or of a new one."""
        events: list[Body] = []
        if self._open != kind:
            empty = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            events = self._begin(kind, empty)
        return [*events, {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}]

    def _call(self, call: Mapping[str, Any]) -> list[Body]:
        """More of a call. Some servers give every call the place 0: another id is another call."""
        events: list[Body] = []
        place, call_id = call.get("index") or 0, call.get("id")
        function: Mapping[str, Any] = call.get("function") or {}
        known = self._calls.get(place)
        if known is None or (call_id and call_id != known[0]):
            block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
            events = self._begin("tool_use", block)
            known = self._calls[place] = (call["id"], self._blocks - 1)
        if arguments := function.get("arguments"):
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            delta = {"type": "input_json_delta", "partial_json": text}
            events.append({"type": "content_block_delta", "index": known[1], "delta": delta})
        return events

    def _begin(self, kind: str, block: Body) -> list[Body]:
        events = self._close()
        self._open = kind
        self._blocks += 1
        return [*events, {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}]

    def _close(self) -> list[Body]:
        """The end of the open block; thinking is signed first."""
        kind, self._open, index = self._open, None, self._blocks - 1
        if kind is None:
            return []
        signed: list[Body] = []
        if kind == "thinking":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signed = [{"type": "content_block_delta", "index": index, "delta": delta}]
        return [*signed, {"type": "content_block_stop", "index": index}]


def fold_message(events: Iterable[Mapping[str, Any]]) -> Body:
    """The message that the events of a stream are: as much of it as came. Events that it does not know change nothing.

    `Any`: they are JSON from another process. Raises `TypeError`, `KeyError` or `ValueError` for events that break the
    format.
    """
    message: Body = {}
    blocks: dict[int, Body] = {}
    pieces: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                message = dict(_object(event, "message"))
            case "content_block_start":
                blocks[_index(event)] = _object(event, "content_block")
            case "content_block_delta":
                _continue(pieces, _index(event), _object(event, "delta"))
            case "message_delta":
                _end(message, event)
            case _:
                pass
    for (index, member), texts in pieces.items():
        begun = blocks[index].get(member)
        text = (begun if isinstance(begun, str) else "") + "".join(texts)
        blocks[index] = {**blocks[index], member: tool_input(text) if member == "input" else text}
    return {**message, "content": [blocks[index] for index in sorted(blocks)]}


def replay_message(message: Body) -> list[Body]:
    """The events of a whole message: of an engine that does not stream."""
    head = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[Body] = [{"type": "message_start", "message": head}]
    for index, block in enumerate(cast("list[Body]", message["content"])):
        given = block.get("input")
        begun = {**block, "input": {}} if isinstance(given, dict) else block
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        if given:
            delta = {"type": "input_json_delta", "partial_json": msgspec.json.encode(given).decode()}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ending = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    events.append({"type": "message_delta", "delta": ending, "usage": message.get("usage") or {}})
    return [*events, {"type": "message_stop"}]


def _continue(pieces: dict[tuple[int, str], list[str]], index: int, delta: Body) -> None:
    """Citations, and what is new, change nothing: a turn records text, reasoning and calls."""
    known = _DELTAS.get(str(delta.get("type")))
    if known is None:
        return
    piece = delta.get(known[0])
    if not isinstance(piece, str):
        raise TypeError(f"{known[0]} must be text")
    pieces.setdefault((index, known[1]), []).append(piece)


def _end(message: Body, event: Mapping[str, Any]) -> None:
    """Counts are totals, and absent or null where those of the beginning stand."""
    message |= _object(event, "delta")
    begun, counts = message.get("usage"), event.get("usage")
    totals = {name: count for name, count in cast("Body", counts).items() if count is not None} if counts else {}
    message["usage"] = {**cast("Body", begun if isinstance(begun, dict) else {}), **totals}


def _object(event: Mapping[str, Any], name: str) -> Body:
    value = event.get(name)
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object")
    return cast("Body", value)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError("index must be a whole number")
    return index
