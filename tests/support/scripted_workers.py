"""Two models of one provider: a dear one that does everything and plans, and a cheap one that cannot write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from tests.support.running import listening

GOOD, CHEAP = "good", "cheap"
SORT, WRITE = "Sort the note.", "Write the reply."
PLAN = {
    "sub_tasks": [
        {"task_type": "classification", "instruction": SORT, "depends_on": [], "complexity": 0.2},
        {"task_type": "generation", "instruction": WRITE, "depends_on": [0], "complexity": 0.5},
    ]
}
WORKERS = [
    {
        "name": name,
        "model_type": "llm",
        "model": f"upstream/{name}",
        "capabilities": ["classification", "generation"],
        "cost_per_token": cost,
        "limits": {"max_output_tokens": 100},
    }
    for name, cost in ((GOOD, 1e-5), (CHEAP, 1e-6))
]


class ScriptedModels:
    """A server of OpenAI's API; the cheap model refuses what is to be written."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def find(self, method: str, path: str) -> Handler:
        if (method, path) != ("POST", "/v1/chat/completions"):
            raise HttpError(404, path)
        return self._chat

    async def _chat(self, request: Request) -> Answer:
        body = request.json_object()
        self.asked[body["model"]] += 1
        if "response_format" in body:
            return json_response(_completion(body, json.dumps(PLAN)))
        if body["model"] == CHEAP and str(body["messages"][-1]["content"]).startswith(WRITE):
            raise HttpError(400, "this model does not write")
        return json_response(_completion(body, f"{body['model']} did it."))


def _completion(body: dict[str, Any], text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**head, "choices": [choice], "usage": usage}


@asynccontextmanager
async def scripted_models() -> AsyncIterator[str]:
    """Serve them on a free port; yields the base URL."""
    async with listening(ScriptedModels().find) as url:
        yield f"{url}/v1"
