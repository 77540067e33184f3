"""A server of the Responses API over a scripted chat engine: the pure functions of the gateway and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.contract.http.answers import ErrorPart
from ratchet.core.errors import NotFound
from ratchet.core.service.asgi import Answer, EventStream, Handler, JsonApi, Request, json_response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.problems import HttpError
from ratchet.dialects.responses.answers import ResponseStream, from_chat
from ratchet.dialects.responses.requests import ResponsesRequest, read, to_chat
from ratchet.dialects.responses.state import History, ResponseState, input_page, not_kept, state_of
from ratchet.dialects.streams import Problem
from tests.support.fake_streams import vllm_chunks
from tests.support.running import running

OWNER = "someone"
CREATED = 1_750_000_000
BROKEN = Problem(502, ErrorPart(message="the engine broke", type="server_error", code="engine_failed"))


@dataclass
class ResponsesApp:
    """Answers each request with the next scripted message; keeps states in a dict."""

    messages: list[dict[str, Any]]
    finish_reason: str | None = None
    breaks: bool = False
    """Streams fail after three chunks."""
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The requests, as they came."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The chat requests that the engine got."""
    states: dict[str, ResponseState] = field(default_factory=dict[str, ResponseState])

    def find(self, method: str, path: str) -> Handler:
        head, _, rest = path.removeprefix("/v1/responses").partition("/")
        if head or not path.startswith("/v1/responses"):
            raise HttpError(404, path)
        if not rest:
            return self.create
        if rest.endswith("/input_items"):
            return self.input_items
        return self.delete if method == "DELETE" else self.retrieve

    async def create(self, request: Request) -> Answer:
        self.received.append(request.json_object())
        asked = read(request.json_object())
        history = History(asked)
        while (needed := history.needed()) is not None:
            history.add(needed, self.states.get(needed))
        asked = history.expanded()
        chat = to_chat(asked)
        self.asked.append(chat)
        response_id = f"resp_{len(self.asked):032x}"
        answer = self._answer(chat)
        if asked.stream:
            return EventStream(self._events(asked, chat, answer, response_id))
        response = from_chat(asked.body, answer, response_id=response_id, created_at=CREATED)
        self._keep(asked, response)
        return json_response(response)

    async def retrieve(self, request: Request) -> Answer:
        return json_response(self._state(request).shown())

    async def delete(self, request: Request) -> Answer:
        state = self._state(request)
        del self.states[state.id]
        return json_response({"id": state.id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Answer:
        return json_response(input_page(self._state(request), after=None, limit=20, order="asc"))

    def _state(self, request: Request) -> ResponseState:
        response_id = request.path.removeprefix("/v1/responses/").partition("/")[0]
        state = self.states.get(response_id)
        if state is None:
            raise not_kept(response_id)
        return state

    def _keep(self, asked: ResponsesRequest, response: dict[str, Any]) -> None:
        if asked.store:
            self.states[response["id"]] = state_of(asked, response, owner=OWNER)

    async def _events(
        self, asked: ResponsesRequest, chat: dict[str, Any], answer: dict[str, Any], response_id: str
    ) -> AsyncGenerator[bytes, None]:
        stream = ResponseStream(asked.body, response_id=response_id, created_at=CREATED)
        for number, chunk in enumerate(vllm_chunks(answer, chat)):
            if self.breaks and number == 3:
                for event in stream.fail(BROKEN):
                    yield event
                return
            for event in stream.feed(chunk):
                yield event
        for event in stream.finish():
            yield event
        assert stream.response is not None
        self._keep(asked, stream.response)

    def _answer(self, chat: dict[str, Any]) -> dict[str, Any]:
        if not self.messages:
            raise NotFound("the script has ended")
        message = {"role": "assistant", **self.messages.pop(0)}
        text = message.get("content") or ""
        tokens = [{"token": one, "logprob": -0.25, "bytes": list(one.encode()), "top_logprobs": []} for one in text]
        called = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self.finish_reason or called,
            "token_ids": list(range(len(text))),
            "logprobs": {"content": tokens},
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 3}}
        head = {"id": "c-1", "object": "chat.completion", "created": CREATED, "model": "support.v1"}
        return msgspec.to_builtins({**head, "choices": [choice], "usage": {**usage, **details}})


@asynccontextmanager
async def serving_responses(app: ResponsesApp) -> AsyncIterator[str]:
    """Serve it on a free port; yields its base url."""
    server = HttpServer(JsonApi(app.find, 1 << 24), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}/v1"
