"""The gateway's own key at an engine or an upstream that repeats it in its errors: neither agents nor turns get it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from structlog.testing import capture_logs

from ratchet.core.contract import Turn
from ratchet.gateway.engines.base import EventReply, Reply
from ratchet.gateway.engines.http_transport import Address, HttpTransport
from ratchet.gateway.settings import UpstreamSettings
from tests.support.gateway_scene import ROLE, scene
from tests.support.servers import Broker

KEY = "zx/of-the=engine&7Kq2LmNn"
SPELLINGS = [
    KEY,
    KEY.replace("/", "\\/"),
    KEY.replace("=", "\\u003d").replace("&", "\\u0026"),
    "zx%2Fof-the%3Dengine%267Kq2LmNn",
]
"""As libraries write it into JSON, and into URLs."""
HI: list[Any] = [{"role": "user", "content": "hi"}]
CHUNK = {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "It"}, "finish_reason": None}],
}
STREAM = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n"


def whole(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nconnection: close\r\nx-request-id: of {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def error(code: int, spelling: str = KEY) -> bytes:
    return b'{"error": {"message": "the key %b has no access", "code": %d}}' % (spelling.encode(), code)


def stream(*events: bytes) -> bytes:
    return STREAM + b"".join(b"data: %b\n\n" % event for event in events)


BEGUN = json.dumps(CHUNK).encode()
ERRORS = {
    **{str(status): whole(status, error(status)) for status in (400, 401, 422, 424, 429, 500, 503)},
    "no JSON": whole(400, b"the key %b has no access" % KEY.encode()),
    "a whole answer": whole(200, error(500)),
    "the begin of a stream": stream(error(500)),
    "within a stream": stream(BEGUN, error(500)),
    "the last bytes of a stream": stream(BEGUN) + b"data: " + error(500),
}


@dataclass
class Telling:
    """Answers every call with the same bytes, and says that it works."""

    answer: bytes = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(200, b"{}") if head.startswith(b"GET") else self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(server: Telling) -> AsyncIterator[str]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("kind", ["engine", "upstream"])
async def test_no_error_of_a_server_brings_gateways_key_to_agents_turns_and_logs(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    server, words = Telling(), dict[str, str]()
    monkeypatch.setenv("KEY_OF_SERVER", KEY)
    with capture_logs() as logged:
        async with listening(server) as url:
            engine = {"name": "one", "kind": "vllm", "urls": [url], "roles": ["*"], "api_key_env": "KEY_OF_SERVER"}
            upstream = UpstreamSettings(name="up", base_url=url, api_key_env="KEY_OF_SERVER", models={"sales": "big"})
            async with scene(nats, tmp_path, engines=[engine], upstreams=[upstream]) as here:
                for name, server.answer in ERRORS.items():
                    words[name] = await error_of(
                        here.client(), ROLE if kind == "engine" else "sales", stream="stream" in name
                    )
                turns = [msgspec.json.encode(turn).decode() for turn in await here.published(Turn, len(ERRORS))]
    assert [name for name, shown in words.items() if KEY in shown] == []
    assert [turn for turn in turns if KEY in turn] == []
    assert KEY not in str(logged)
    assert {line["event"] for line in logged} >= {"the engine refuses the gateway"}, "logs of errors are looked at"
    assert "the key *** has no access" in words["400"], "the rest of the server's words stays"
    assert "the key *** has no access" in words["within a stream"]


async def error_of(client: openai.AsyncOpenAI, model: str, *, stream: bool) -> str:
    """The error of a call with its headers, as its agent gets it."""
    try:
        answer: Any = await client.chat.completions.create(model=model, messages=HI, stream=stream)
        return str([chunk async for chunk in answer] if stream else answer)
    except openai.APIStatusError as failed:
        return f"{failed} {failed.response.headers} {failed.response.text}"
    except openai.APIError as failed:
        return f"{failed} {failed.body}"


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_the_key_is_taken_out_however_the_server_writes_it(header: str, spelling: str) -> None:
    headers = {header: f"Bearer {KEY}" if header == "authorization" else KEY}
    for answer in (whole(400, error(400, spelling)), stream(BEGUN, error(400, spelling))):
        async with listening(Telling(answer)) as url:
            assert b"the key *** has no access" in await got(HttpTransport("up", address(url, headers)))


async def test_a_user_of_the_address_is_taken_out_too() -> None:
    async with listening(Telling(whole(400, error(400, "dXNlcjpzZWNyZXQ=")))) as url:
        transport = HttpTransport("up", address(url.replace("://", "://user:secret@"), {}))
        assert b"the key *** has no access" in await got(transport)


async def test_a_word_in_the_place_of_a_key_leaves_errors_readable() -> None:
    async with listening(Telling(whole(400, error(400)))) as url:
        assert await got(HttpTransport("up", address(url, {"authorization": "Bearer key"}))) == error(400)


def address(url: str, headers: dict[str, str]) -> Address:
    return Address(url, headers, connect_s=10, answer_s=10, idle_s=10)


async def got(transport: HttpTransport) -> bytes:
    """All that an answer says."""
    try:
        reply = await transport.stream("/v1/x", b"{}")
        if isinstance(reply, Reply):
            return reply.raw
        assert isinstance(reply, EventReply)
        return b"\n".join([event async for events in reply.events for event in events])
    finally:
        await transport.close()
