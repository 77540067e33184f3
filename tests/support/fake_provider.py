"""A server of OpenAI's API like any provider's: it asks for a key, knows no policies and tells no token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ratchet.service.asgi import Handler, JsonApi, Request, Response, json_response
from ratchet.service.http import HttpServer
from ratchet.service.problems import HttpError
from tests.support.running import running


@dataclass
class FakeProvider:
    """Answers for one model, to those who know the key."""

    key: str
    model: str = "big-model"
    answer: str = "The provider says so."
    refusing: HttpError | None = None
    """Answers every call with this error."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def find(self, method: str, path: str) -> Handler:
        if (method, path) != ("POST", "/v1/chat/completions"):
            raise HttpError(404, path)
        return self.chat

    async def chat(self, request: Request) -> Response:
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
            "message": {"role": "assistant", "content": self.answer},
            "finish_reason": "stop",
            "logprobs": None,
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        head = {"id": "chatcmpl-p", "object": "chat.completion", "created": 0, "model": self.model}
        return json_response({**head, "choices": [choice], "usage": usage})


@asynccontextmanager
async def providing(provider: FakeProvider) -> AsyncIterator[str]:
    """Serve it on a free port; yields its base url."""
    server = HttpServer(JsonApi(provider.find, 1 << 24), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}/v1"
