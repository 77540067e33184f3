"""A scripted provider: chat completions, embeddings, and natively the Responses and Messages APIs, as hosts have them.

What it says is the scripted `model`'s. A stream of the task `stream` stops after its first piece of text until the
client says that it has it. Asked as the engine of policies, it counts bytes as tokens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.core.service.asgi import Answer, EventStream, Handler, JsonApi, Request, Response, json_response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.problems import HttpError
from tests.clients import native
from tests.clients.model import next_message, task_in
from tests.support.fake_streams import Before, vllm_events
from tests.support.running import running

EMBEDDING = [0.5, 0.25]
"""What every text is embedded as."""
HELD_EVENT = {"/v1/chat/completions": 2, "/v1/responses": 4, "/v1/messages": 3}
"""The first event of a stream that waits: before it came the first piece of text."""
HELD_S = 8.0
"""How long a stream waits for a client that says nothing, since it has nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as it came."""

    task: str
    path: str
    body: dict[str, Any]
    headers: dict[bytes, bytes]


@dataclass
class ScriptedProvider:
    """Answers as a model would that plays the tasks; knows any name of a model."""

    asked: list[Asked] = field(default_factory=list[Asked])
    """The calls of the model."""
    first_heard: asyncio.Event = field(default_factory=asyncio.Event)
    """A client has the first piece of a stream."""
    in_time: bool = False
    """It had it before the second was sent."""
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    """What each of its responses ended, by id."""

    def find(self, method: str, path: str) -> Handler:
        routes = {
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/responses"): self.responses,
            ("POST", "/v1/messages"): self.messages,
            ("POST", "/v1/messages/count_tokens"): self.count_tokens,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/v1/embeddings"): self.embeddings,
            ("POST", "/heard"): self.heard,
        }
        if (method, path) not in routes:
            raise HttpError(404, path)
        return routes[method, path]

    async def chat(self, request: Request) -> Answer:
        one = self._asked(request)
        if self._refuses(one):
            return _overloaded()
        tools = [name for name, _ in native.tools_of(one.body.get("tools") or ())]
        results = native.results_in(one.body["messages"])
        answer = _completion(one.body, next_message(one.task, tools, request.body.decode(), results))
        if not one.body.get("stream"):
            return json_response(answer)
        return EventStream(vllm_events(answer, one.body, self._before(one)))

    async def responses(self, request: Request) -> Answer:
        body = request.json_object()
        given = [*self.histories.get(body.get("previous_response_id") or "", []), *native.items_of(body)]
        text = json.dumps([given, body])
        one = self._asked(request, text)
        if self._refuses(one):
            return _overloaded()
        tools, results = list(native.offered_in_responses(body)), native.results_in(given)
        made = native.response(body, next_message(one.task, tools, text, results))
        self.histories[made["id"]] = [*given, *made["output"]]
        if not one.body.get("stream"):
            return json_response(made)
        return EventStream(native.response_events(made, self._before(one)))

    async def messages(self, request: Request) -> Answer:
        one = self._asked(request)
        if self._refuses(one):
            return _overloaded_as_anthropic()
        tools = [name for name, _ in native.tools_of(one.body.get("tools") or ())]
        results = native.results_in(one.body["messages"])
        made = native.anthropic_message(one.body, next_message(one.task, tools, request.body.decode(), results))
        if not one.body.get("stream"):
            return json_response(made)
        return EventStream(native.anthropic_events(made, self._before(one)))

    async def count_tokens(self, request: Request) -> Answer:
        return json_response({"input_tokens": len(request.body)})

    async def tokenize(self, request: Request) -> Answer:
        count = len(msgspec.json.encode(request.json_object()["messages"]))
        return json_response({"count": count, "max_model_len": 1 << 20, "tokens": []})

    async def embeddings(self, request: Request) -> Answer:
        body = request.json_object()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        packed = base64.b64encode(struct.pack(f"<{len(EMBEDDING)}f", *EMBEDDING)).decode()
        vector = packed if body.get("encoding_format") == "base64" else EMBEDDING
        rows = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return json_response({"object": "list", "data": rows, "model": body["model"], "usage": usage})

    async def heard(self, request: Request) -> Answer:
        self.in_time = not self.first_heard.is_set()
        self.first_heard.set()
        return json_response({})

    def _before(self, one: Asked) -> Before:
        held = HELD_EVENT[one.path]

        async def hold(number: int) -> None:
            if one.task == "stream" and number >= held and not self.first_heard.is_set():
                try:
                    await asyncio.wait_for(self.first_heard.wait(), HELD_S)
                except TimeoutError:
                    self.first_heard.set()

        return hold

    def _asked(self, request: Request, text: str | None = None) -> Asked:
        """`text`: the request with what it continues."""
        task = task_in(text or request.body.decode())
        one = Asked(task, request.path, request.json_object(), dict(request.headers))
        self.asked.append(one)
        return one

    def _refuses(self, one: Asked) -> bool:
        """The first attempt of the task `retry`."""
        return one.task == "retry" and sum(each.task == "retry" for each in self.asked) == 1


def _completion(body: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    prompt, output = list(msgspec.json.encode(body["messages"])), list(msgspec.json.encode(message))
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    usage: dict[str, Any] = {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    head: dict[str, Any] = {}
    if body.get("return_token_ids"):
        counted = {"prompt_tokens": len(prompt), "completion_tokens": len(output)}
        usage |= {**counted, "total_tokens": len(prompt) + len(output)}
        head["prompt_token_ids"], choice["token_ids"] = prompt, output
        choice["logprobs"] = {"content": [{"token": chr(token), "logprob": -0.25} for token in output]}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:29]}",
        "object": "chat.completion",
        "created": 1_780_000_000,
        "model": f"{body['model']}-2026-04-14",
        "choices": [choice],
        "usage": usage,
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
        **head,
    }


def _overloaded() -> Response:
    error = {"message": "Rate limit reached", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    return _refusal(429, {"error": error})


def _overloaded_as_anthropic() -> Response:
    return _refusal(429, {"type": "error", "error": {"type": "rate_limit_error", "message": "Rate limit reached"}})


def _refusal(status: int, body: object) -> Response:
    headers = ((b"content-type", b"application/json"), (b"retry-after-ms", b"20"), (b"retry-after", b"1"))
    return Response(status, json.dumps(body).encode(), headers)


@asynccontextmanager
async def providing(provider: ScriptedProvider) -> AsyncIterator[str]:
    """Serve it on a free port; yields its address."""
    server = HttpServer(JsonApi(provider.find, 1 << 24, cancel_on_disconnect=True), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}"
