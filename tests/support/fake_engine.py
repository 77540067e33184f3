"""An engine that answers like vLLM, with bytes for tokens: for tests of what stands in front of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ratchet.kernel.asgi import Handler, HttpError, JsonApi, Request, Response, json_response
from ratchet.kernel.http import HttpServer
from tests.support.running import running


@dataclass
class FakeEngine:
    """Holds policies by name; answers every chat with what `say` returns."""

    resident: set[str] = field(default_factory=set[str])
    loads: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answer: str = "It arrives today."
    broken: bool = False

    def find(self, method: str, path: str) -> Handler:
        routes = {"/v1/chat/completions": self.chat, "/v1/load_lora_adapter": self.load}
        if method != "POST" or path not in routes:
            raise HttpError(404, path)
        return routes[path]

    async def chat(self, request: Request) -> Response:
        body = request.json_object()
        self.asked.append(body)
        if self.broken:
            raise HttpError(500, "out of memory")
        if body["model"] not in self.resident:
            raise HttpError(404, f"no model {body['model']}", code="model_not_found")
        prompt = list(msgspec.json.encode(body["messages"]))
        output = list(self.answer.encode())
        entries = [{"token": chr(token), "logprob": -0.25} for token in output]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.answer},
            "finish_reason": "stop",
            "token_ids": output,
            "logprobs": {"content": entries},
        }
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "total_tokens": len(prompt) + len(output),
        }
        return json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
                "prompt_token_ids": prompt,
            }
        )

    async def load(self, request: Request) -> Response:
        body = request.json_object()
        self.loads.append((body["lora_name"], body["lora_path"]))
        self.resident.add(body["lora_name"])
        return json_response({"status": "loaded"})


@asynccontextmanager
async def serving(engine: FakeEngine) -> AsyncIterator[str]:
    """Serve the engine on a free port; yields its url."""
    server = HttpServer(JsonApi(engine.find, 1 << 24), "127.0.0.1", 0)
    async with running(server):
        yield f"http://127.0.0.1:{server.port}"
