"""An engine that answers every chat at once with the same bytes, to measure what stands in front of it.

Run: `python -m tests.bench.upstream PORT`. A prompt of 180 tokens, an answer of 12, as in a help-desk call.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import uvloop

from ratchet.service.asgi import Handler, JsonApi, Request, Response
from ratchet.service.http import HttpServer
from ratchet.service.problems import HttpError

PROMPT_TOKENS, ADDED_TOKENS, OUTPUT_TOKENS = 180, 20, 12
_OUTPUT = list(range(OUTPUT_TOKENS))
_ENTRY = {"token": " it", "logprob": -0.3141592653589793, "bytes": [32, 105, 116], "top_logprobs": []}


def _answer(call: int) -> bytes:
    """The answer to a trajectory's n-th call, whose prompt begins with the prompt and output of the call before."""
    prompt = list(range(PROMPT_TOKENS)) + (_OUTPUT + list(range(ADDED_TOKENS))) * call
    usage = {"prompt_tokens": len(prompt), "completion_tokens": OUTPUT_TOKENS}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Your order K47 was sent on Monday."},
        "logprobs": {"content": [_ENTRY] * OUTPUT_TOKENS},
        "finish_reason": "stop",
        "token_ids": _OUTPUT,
    }
    return msgspec.json.encode(
        {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion",
            "created": 1_780_000_000,
            "model": "helpdesk@1-11111111",
            "choices": [choice],
            "usage": {**usage, "total_tokens": len(prompt) + OUTPUT_TOKENS},
            "prompt_token_ids": prompt,
        }
    )


_ANSWERS = [_answer(call) for call in range(8)]


async def _chat(request: Request) -> Response:
    return Response(200, _ANSWERS[request.body.count(b'"role":"assistant"')])


async def _ready(_: Request) -> Response:
    return Response(200, b"{}")


def _find(method: str, path: str) -> Handler:
    routes = {("POST", "/v1/chat/completions"): _chat, ("GET", "/ready"): _ready}
    if (method, path) not in routes:
        raise HttpError(404, path)
    return routes[method, path]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(HttpServer(JsonApi(_find, 1 << 24), "127.0.0.1", int(sys.argv[1])).run())
