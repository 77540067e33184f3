"""Servers that answer for a model: an engine like vLLM with bytes for tokens, and a provider that asks for a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.service.asgi import Answer, EventStream, Handler, JsonApi, Request, Response, json_response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.problems import HttpError
from tests.support.fake_streams import Before, vllm_events
from tests.support.running import listening, running

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
        },
    }
]
"""The tool that agents of the tests offer."""


async def at_once(_: int) -> None:
    """Nothing comes between the events of a stream."""


def tool_call(call_id: str, arguments: str = '{"order_id": "K47-2026"}') -> dict[str, Any]:
    """A call of that tool, as a model answers it."""
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


@dataclass
class FakeEngine:
    """Finds policies by name; answers everything with `answer`, or with `tool_calls` where tools are offered.

    It answers as often as `n` asks for, and streams as vLLM does.
    """

    resident: set[str] = field(default_factory=set[str])
    loads: list[str] = field(default_factory=list[str])
    """Policies that it had to look up, because it did not hold them."""
    unknown: set[str] = field(default_factory=set[str])
    """Policies that it does not find."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    arms: list[str | None] = field(default_factory=list[str | None])
    """The arm that each call names to whatever routes it."""
    answer: str = "It arrives today."
    tool_calls: list[dict[str, Any]] | None = None
    messages: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By policy: the message that it answers with, whatever it is asked."""
    broken: bool = False
    failing: set[str] = field(default_factory=set[str])
    """Policies that answer with an error."""
    refusing: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Policies that refuse calls, with status and code, which is also what they say."""
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: calls are answered. Cleared by a test: they wait."""
    before_event: Before = at_once
    """What happens before each event of a stream."""
    streamed: int = 0
    """Events of streams that were sent."""
    left: int = 0
    """Calls whose client went away before the answer, or before its end."""

    def __post_init__(self) -> None:
        self.at_work.set()

    def find(self, method: str, path: str) -> Handler:
        routes = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.complete,
            "/tokenize": self.tokenize,
        }
        if method != "POST" or path not in routes:
            raise HttpError(404, path)
        return routes[path]

    async def chat(self, request: Request) -> Answer:
        body = await self._begun(request)
        message: dict[str, Any] = {"role": "assistant", "content": self.answer}
        if self.tool_calls and body.get("tools"):
            message = {"role": "assistant", "content": None, "tool_calls": self.tool_calls}
        message = self.messages.get(body["model"], message)
        prompt, output = list(msgspec.json.encode(body["messages"])), list(self.answer.encode())
        choice = {
            "message": message,
            "finish_reason": "tool_calls" if message["content"] is None else "stop",
            "token_ids": output,
            "logprobs": {"content": [{"token": chr(token), "logprob": -0.25} for token in output]},
        }
        answer = {**_head(body, "chat.completion", prompt, output, choice), "prompt_token_ids": prompt}
        return self._answered(body, answer)

    async def complete(self, request: Request) -> Answer:
        body = await self._begun(request)
        given = body["prompt"]
        prompt, output = list(given.encode()) if isinstance(given, str) else given, list(self.answer.encode())
        choice = {
            "text": self.answer,
            "finish_reason": "stop",
            "token_ids": output,
            "prompt_token_ids": prompt,
            "logprobs": {"tokens": [chr(token) for token in output], "token_logprobs": [-0.25] * len(output)},
        }
        return self._answered(body, _head(body, "text_completion", prompt, output, choice))

    async def tokenize(self, request: Request) -> Response:
        body = await self._begun(request)
        tokens = list(msgspec.json.encode(body["messages"]))
        return json_response({"count": len(tokens), "max_model_len": 8192, "tokens": tokens})

    def _answered(self, body: dict[str, Any], answer: dict[str, Any]) -> Answer:
        return EventStream(self._events(body, answer)) if body.get("stream") else json_response(answer)

    async def _events(self, body: dict[str, Any], answer: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(vllm_events(answer, body, self.before_event)) as events:
                async for event in events:
                    yield event
                    self.streamed += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.left += 1
            raise

    async def _begun(self, request: Request) -> dict[str, Any]:
        body = request.json_object()
        self.asked.append(body)
        self.arms.append(request.header(b"x-ratchet-arm"))
        try:
            await self.at_work.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if self.broken or body["model"] in self.failing:
            raise HttpError(500, "out of memory")
        if body["model"] in self.refusing:
            status, code = self.refusing[body["model"]]
            raise HttpError(status, code, code=code)
        if body["model"] in self.unknown:
            raise HttpError(404, f"no model {body['model']}", code="model_not_found")
        if body["model"] not in self.resident:
            self.loads.append(body["model"])
            self.resident.add(body["model"])
        return body


def _head(
    body: dict[str, Any], kind: str, prompt: list[int], output: list[int], choice: dict[str, Any]
) -> dict[str, Any]:
    choices = [{"index": index, **choice} for index in range(body.get("n") or 1)]
    completion = len(output) * len(choices)
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": completion,
        "total_tokens": len(prompt) + completion,
    }
    return {"id": "c-1", "object": kind, "created": 0, "model": body["model"], "choices": choices, "usage": usage}


@asynccontextmanager
async def serving(engine: FakeEngine) -> AsyncIterator[str]:
    """Serve the engine on a free port; yields its url."""
    server = HttpServer(JsonApi(engine.find, 1 << 24, cancel_on_disconnect=True), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}"


@dataclass
class FakeProvider:
    """A server of OpenAI's API like any provider's: it asks for a key, knows no policies and returns no token ids."""

    key: str
    model: str = "big-model"
    answer: str = "The provider says so."
    answer_to: Callable[[dict[str, Any]], str] | None = None
    """The text for a body, in the place of `answer`."""
    refusing: HttpError | None = None
    """Answers every call with this error."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    before_event: Before = at_once
    """What happens before each event of a stream."""

    def find(self, method: str, path: str) -> Handler:
        routes = {
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/embeddings"): self.embed,
            ("GET", "/v1/models"): self.list_models,
        }
        if (method, path) not in routes:
            raise HttpError(404, path)
        return routes[method, path]

    async def list_models(self, request: Request) -> Answer:
        if self.refusing is not None:
            raise self.refusing
        if request.header(b"authorization") != f"Bearer {self.key}":
            raise HttpError(401, f"incorrect API key provided: {request.header(b'authorization')}")
        return json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def embed(self, request: Request) -> Answer:
        body = request.json_object()
        self.asked.append(body)
        if self.refusing is not None:
            raise self.refusing
        embedding = {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return json_response({"object": "list", "data": [embedding], "model": body["model"], "usage": usage})

    async def chat(self, request: Request) -> Answer:
        body = request.json_object()
        self.asked.append(body)
        if self.refusing is not None:
            raise self.refusing
        if request.header(b"authorization") != f"Bearer {self.key}":
            raise HttpError(401, "incorrect API key provided", code="invalid_api_key")
        if body["model"] != self.model:
            raise HttpError(404, f"no model {body['model']}", code="model_not_found")
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.answer_to(body) if self.answer_to else self.answer},
            "finish_reason": "stop",
            "logprobs": None,
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        head = {"id": "chatcmpl-p", "object": "chat.completion", "created": 0, "model": self.model}
        answer = {**head, "choices": [choice], "usage": usage}
        if body.get("stream"):
            return EventStream(vllm_events(answer, body, self.before_event))
        return json_response(answer)


@asynccontextmanager
async def providing(provider: FakeProvider) -> AsyncIterator[str]:
    """Serve it on a free port; yields its base url."""
    async with listening(provider.find, 1 << 26) as url:
        yield f"{url}/v1"
