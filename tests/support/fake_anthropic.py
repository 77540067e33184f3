"""A server of Anthropic's Messages API like any provider's: it asks for a key and a version, and counts tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.service.asgi import Answer, EventStream, Handler, JsonApi, Request, json_response
from ratchet.core.service.http import HttpServer
from tests.support.running import running

PIECE = 4
"""Characters of a delta."""


@dataclass
class FakeAnthropic:
    """Answers everything with the same blocks."""

    key: str
    model: str = "claude-opus"
    blocks: list[dict[str, Any]] = field(default_factory=lambda: [{"type": "text", "text": "Claude says so."}])
    stop_reason: str = "end_turn"
    refusing: tuple[int, str, str] | None = None
    """Answers every call with this error: status, type and message."""
    breaks_after: asyncio.Event | None = None
    """Ends every stream with an error after its first block, once it is set."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    queries: list[str] = field(default_factory=list[str])
    counted: int = 42

    def find(self, method: str, path: str) -> Handler:
        return {"/v1/messages": self.messages, "/v1/messages/count_tokens": self.count}.get(path, self.missing)

    async def missing(self, _: Request) -> Answer:
        return _error(404, "not_found_error", "no such path")

    async def messages(self, request: Request) -> Answer:
        refusal = self._begun(request)
        if refusal is not None:
            return refusal
        body = self.asked[-1]
        usage = {"input_tokens": 9, "cache_read_input_tokens": 3, "output_tokens": 4}
        message = {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks,
            "stop_reason": self.stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }
        if body.get("stream"):
            return EventStream(self._events(message), [(b"request-id", b"req_01")])
        return json_response(message, headers=[(b"request-id", b"req_01")])

    async def count(self, request: Request) -> Answer:
        return self._begun(request) or json_response({"input_tokens": self.counted})

    def _begun(self, request: Request) -> Answer | None:
        self.asked.append(request.json_object())
        self.headers.append({name.decode(): value.decode() for name, value in request.headers.items()})
        self.queries.append(request.query)
        if request.header(b"x-api-key") != self.key or not request.header(b"anthropic-version"):
            return _error(401, "authentication_error", "invalid x-api-key")
        if self.refusing is not None:
            return _error(*self.refusing)
        if self.asked[-1]["model"] != self.model:
            return _error(404, "not_found_error", f"model: {self.asked[-1]['model']}")
        return None

    async def _events(self, message: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        usage = message["usage"]
        begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        yield _event({"type": "message_start", "message": begun})
        yield _event({"type": "ping"})
        for index, block in enumerate(self.blocks):
            for event in _block_events(index, block):
                yield _event(event)
            if self.breaks_after is not None:
                await self.breaks_after.wait()
                yield _event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
                return
        ending = {"stop_reason": self.stop_reason, "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": ending, "usage": {"output_tokens": usage["output_tokens"]}})
        yield _event({"type": "message_stop"})


def _block_events(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    kind = block["type"]
    text = msgspec.json.encode(block["input"]).decode() if kind == "tool_use" else block["text"]
    begun = {**block, "input": {}} if kind == "tool_use" else {**block, "text": ""}
    delta, member = ("input_json_delta", "partial_json") if kind == "tool_use" else ("text_delta", "text")
    pieces = [text[begin : begin + PIECE] for begin in range(0, len(text), PIECE)]
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": {"type": delta, member: piece}} for piece in pieces),
        {"type": "content_block_stop", "index": index},
    ]


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _error(status: int, kind: str, message: str) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_01"}
    return json_response(body, status, [(b"request-id", b"req_01")])


@asynccontextmanager
async def providing_messages(provider: FakeAnthropic) -> AsyncIterator[str]:
    """Serve it on a free port; yields its base url."""
    server = HttpServer(JsonApi(provider.find, 1 << 24), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}/v1"
