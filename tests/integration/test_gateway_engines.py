"""One request to an engine: which failures are retried, which never are, and how they are classified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ratchet.gateway.engines.base import EngineFailed, Reply
from ratchet.gateway.engines.http_post import LARGEST_ANSWER, Address, HttpPost, open_session
from ratchet.local_stack.ports import free_ports


class Engine:
    """Answers every connection with the same bytes, and closes it."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def posting(port: int) -> AsyncIterator[HttpPost]:
    async with open_session() as session:
        yield HttpPost(session, "the engine", Address(f"http://127.0.0.1:{port}", {}, connect_s=1.0, total_s=5.0))


async def asked(answer: bytes) -> tuple[Reply | EngineFailed, int]:
    """The outcome of a request that the engine answers with these bytes, and how many connections it took."""
    engine = Engine(answer)
    async with (
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server,
        posting(server.sockets[0].getsockname()[1]) as post,
    ):
        try:
            return await post("/v1/x", {"model": "m"}), engine.connections
        except EngineFailed as failure:
            return failure, engine.connections


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_an_address_without_a_listener_is_unreachable_after_a_few_tries() -> None:
    (unused_port,) = free_ports(1)
    began = asyncio.get_running_loop().time()
    async with posting(unused_port) as post:
        with pytest.raises(EngineFailed) as failed:
            await post("/v1/x", {})
    assert (failed.value.status, failed.value.code, failed.value.unreachable) == (502, "engine_unavailable", True)
    assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_request_that_may_have_arrived_is_never_sent_again() -> None:
    failed, connections = await asked(b"")
    assert isinstance(failed, EngineFailed)
    assert (failed.status, failed.code, failed.unreachable) == (502, "engine_unavailable", False)
    assert connections == 1


async def test_an_answer_without_json_is_invalid_and_an_error_page_is_an_error() -> None:
    page = b"<html>bad gateway</html>"
    invalid, _ = await asked(http("200 OK", page))
    assert isinstance(invalid, EngineFailed)
    assert invalid.code == "engine_invalid"
    error, connections = await asked(http("503 Busy", page))
    assert error == Reply(503, None, page)
    assert connections == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "in OpenAI\'s shape"}}', "in OpenAI's shape"),
        (b'{"error": "in Ollama\'s"}', "in Ollama's"),
        (b'{"object": "error", "message": "in an older one"}', "in an older one"),
        (b"[]", "the engine answered 400"),
    ],
)
async def test_an_engines_own_message_is_read_from_every_shape(body: bytes, reason: str) -> None:
    reply, _ = await asked(http("400 Bad", body))
    assert isinstance(reply, Reply)
    assert reply.reason == reason
    assert (reply.refusal().status, str(reply.refusal())) == (400, reason)


async def test_a_redirect_is_not_followed_and_an_endless_answer_not_kept() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    redirected, connections = await asked(moved)
    assert isinstance(redirected, EngineFailed)
    assert (redirected.code, connections) == ("engine_invalid", 1)
    endless, _ = await asked(http("200 OK", b" " * (LARGEST_ANSWER + 1)))
    assert isinstance(endless, EngineFailed)
    assert endless.status == 502
