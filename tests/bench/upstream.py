"""An engine that answers every chat at once with the same bytes, to measure what stands in front of it.

Run: `python -m tests.bench.upstream PORT`. A prompt of 180 tokens and an answer of 12, as in a help-desk call; 4,000
and 200 for a request of more than 8 KB. It answers like vLLM: token ids and log-probabilities only when asked for them,
and a chunk for each token of a stream. `POST /pace` with a number of seconds sets the time between two chunks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import lru_cache

import httptools
import msgspec
import uvloop

TOKEN = " it"
"""The text of every token of an answer."""
SMALL, LARGE = (180, 12), (4000, 200)
"""Tokens of the first prompt, and of an answer."""
ADDED_TOKENS = 20
"""Of what an agent adds before its next call."""
LARGE_BYTES = 8000

_ENTRY = {"token": TOKEN, "logprob": -0.3141592653589793, "bytes": [32, 105, 116], "top_logprobs": []}
_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\n%b\r\n\r\n"
_COMMON = {"id": "chatcmpl-0123456789abcdef", "created": 1_780_000_000, "model": "helpdesk@1-11111111"}


class Kind(msgspec.Struct, frozen=True):
    """What an answer depends on."""

    large: bool
    call: int
    """Calls of the same trajectory before this one: their prompts and answers begin this prompt."""
    ids: bool
    usage: bool = False

    @property
    def prompt(self) -> list[int]:
        first, output = LARGE if self.large else SMALL
        return list(range(first)) + (list(range(output)) + list(range(ADDED_TOKENS))) * self.call

    @property
    def output(self) -> int:
        return (LARGE if self.large else SMALL)[1]

    @property
    def counts(self) -> dict[str, int]:
        prompt = len(self.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": self.output, "total_tokens": prompt + self.output}


@lru_cache
def whole(kind: Kind) -> bytes:
    """An answer in one piece, head included."""
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": TOKEN * kind.output},
        "logprobs": {"content": [_ENTRY] * kind.output} if kind.ids else None,
        "finish_reason": "stop",
    }
    body: dict[str, object] = {**_COMMON, "object": "chat.completion", "choices": [choice], "usage": kind.counts}
    if kind.ids:
        choice["token_ids"] = list(range(kind.output))
        body["prompt_token_ids"] = kind.prompt
    encoded = msgspec.json.encode(body)
    return _HEAD % (b"application/json", b"content-length: %d" % len(encoded)) + encoded


@lru_cache
def chunks(kind: Kind) -> tuple[bytes, ...]:
    """A streamed answer, framed: the head with the chunk that names the role, the tokens, and the end."""
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in map(_event, _events(kind))]
    head = _HEAD % (b"text/event-stream", b"transfer-encoding: chunked")
    return (head + framed[0], *framed[1:-1], framed[-1] + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode({**_COMMON, "object": "chat.completion.chunk", **chunk}) + b"\n\n"


def _events(kind: Kind) -> Iterator[dict[str, object]]:
    prompt = {"prompt_token_ids": kind.prompt} if kind.ids else {}
    yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], **prompt}
    for number in range(kind.output):
        choice: dict[str, object] = {"index": 0, "delta": {"content": TOKEN}, "finish_reason": None}
        if kind.ids:
            choice |= {"logprobs": {"content": [_ENTRY]}, "token_ids": [number]}
        yield {"choices": [choice]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    if kind.usage:
        yield {"choices": [], "usage": kind.counts}


class Mock(asyncio.Protocol):
    """One connection. Requests on it follow each other."""

    pace_s = 0.0

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body = self._body
        if self._url == b"/pace":
            Mock.pace_s = float(body)
        if not self._url.endswith(b"/chat/completions"):
            self._transport.write(_HEAD % (b"application/json", b"content-length: 2") + b"{}")
            return
        calls = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
        kind = Kind(len(body) > LARGE_BYTES, calls, b'"return_token_ids"' in body, b'"include_usage"' in body)
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self._transport.write(whole(kind))
        elif not Mock.pace_s:
            self._transport.write(b"".join(chunks(kind)))
        else:
            self._streaming = asyncio.ensure_future(self._stream(chunks(kind)))

    async def _stream(self, pieces: tuple[bytes, ...]) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(Mock.pace_s)
            self._transport.write(piece)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
