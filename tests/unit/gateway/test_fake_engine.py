"""The fake engine streams what it answers, as vLLM does: the tests of the gateway's streams rely on it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ratchet.core.service.asgi import JsonApi
from ratchet.core.service.problems import HttpError
from tests.support.fake_engine import TOOLS, FakeEngine, tool_call
from tests.support.joined_streams import events_of, joined

MODEL = "support@1-11111111"
ALL: dict[str, Any] = {"return_token_ids": True, "stream_options": {"include_usage": True}}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "where"}], "logprobs": True, **ALL}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "where", "logprobs": 0, **ALL}


async def post(engine: FakeEngine, path: str, body: dict[str, Any]) -> httpx.Response:
    app: Any = JsonApi(engine.find, 1 << 20)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
        return await http.post(path, json=body)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("path", "body", "calls"),
    [
        ("/v1/chat/completions", CHAT, None),
        ("/v1/chat/completions", CHAT | {"tools": TOOLS}, [tool_call("call_a"), tool_call("call_b", "{}")]),
        ("/v1/completions", TEXT, None),
    ],
)
async def test_the_chunks_joined_are_the_answer(path: str, body: dict[str, Any], calls: Any, n: int) -> None:
    engine = FakeEngine(resident={MODEL}, tool_calls=calls, answer="Es kommt früh, um 7 €.")
    whole = (await post(engine, path, body | {"n": n})).json()
    chunks = events_of((await post(engine, path, body | {"n": n, "stream": True})).content)
    assert joined(chunks) == whole
    assert len(whole["choices"]) == n
    assert len(chunks) > 5


async def test_an_error_within_a_stream_is_its_last_event() -> None:
    async def fail(number: int) -> None:
        if number == 2:
            raise HttpError(500, "out of memory")

    engine = FakeEngine(resident={MODEL}, before_event=fail)
    events = events_of((await post(engine, "/v1/chat/completions", CHAT | {"stream": True})).content)
    assert len(events) == 3
    assert events[-1]["error"]["message"] == "out of memory"
