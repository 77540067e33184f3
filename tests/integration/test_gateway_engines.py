"""One request to an engine: which failures are retried, which never are, and how they are classified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from ratchet.gateway.engines.base import EngineFailed, EventReply, Reply
from ratchet.gateway.engines.http_transport import LARGEST_ANSWER, Address, HttpTransport
from ratchet.local.local_stack.ports import free_ports


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
async def posting(port: int, answer_s: float = 5.0) -> AsyncIterator[HttpTransport]:
    address = Address(f"http://127.0.0.1:{port}", {}, connect_s=1.0, answer_s=answer_s, idle_s=5.0)
    transport = HttpTransport("the engine", address)
    try:
        yield transport
    finally:
        await transport.close()


async def asked(answer: bytes) -> tuple[Reply | EngineFailed, int]:
    """The outcome of a request that the engine answers with these bytes, and how many connections it took."""
    engine = Engine(answer)
    async with (
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server,
        posting(server.sockets[0].getsockname()[1]) as transport,
    ):
        try:
            return await transport.post("/v1/x", b"{}"), engine.connections
        except EngineFailed as failure:
            return failure, engine.connections


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_an_address_without_a_listener_is_unreachable_after_a_few_tries() -> None:
    (unused_port,) = free_ports(1)
    began = asyncio.get_running_loop().time()
    async with posting(unused_port) as transport:
        with pytest.raises(EngineFailed) as failed:
            await transport.post("/v1/x", b"{}")
    assert (failed.value.status, failed.value.code, failed.value.unreachable) == (502, "engine_unavailable", True)
    assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_request_that_may_have_arrived_is_never_sent_again() -> None:
    failed, connections = await asked(b"")
    assert isinstance(failed, EngineFailed)
    assert (failed.status, failed.code, failed.unreachable) == (502, "engine_unavailable", False)
    assert connections == 1


async def test_an_error_page_is_an_error_without_words() -> None:
    page = b"<html>bad gateway</html>"
    error, connections = await asked(http("503 Busy", page))
    assert isinstance(error, Reply)
    assert (error.status, error.raw, error.body, error.reason) == (503, page, None, "the engine answered 503")
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
    assert reply.status == 400


class Talking:
    """Begins a stream, and sends the same thing until its client has gone."""

    def __init__(self, kind: bytes, sent: bytes) -> None:
        self._head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n\r\n" % kind
        self._sent = sent
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._head)
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(self._sent)
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()
        self.left.set()


@pytest.mark.parametrize("sent", [b": queued\n\n", b'event: ping\ndata: {"type": "ping"}\n\n', b"x"])
async def test_signs_of_life_alone_are_waited_for_no_longer_than_for_an_answer(sent: bytes) -> None:
    engine = Talking(b"text/event-stream", sent)
    async with (
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server,
        posting(server.sockets[0].getsockname()[1], answer_s=0.2) as transport,
    ):
        reply = await transport.stream("/v1/x", b"{}")
        assert isinstance(reply, EventReply)
        with pytest.raises(EngineFailed, match=r"no more of the answer within 0\.2 s"):
            assert [event async for event in reply.events]
        await engine.left.wait()


async def test_stream_left_by_its_reader_between_two_events_ends_engine_work() -> None:
    engine = Talking(b"text/event-stream", b"data: {}\n\n")
    async with (
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server,
        posting(server.sockets[0].getsockname()[1]) as transport,
    ):
        reply = await transport.stream("/v1/x", b"{}")
        assert isinstance(reply, EventReply)
        await anext(reply.events)
        await reply.events.aclose()
        await engine.left.wait()


async def test_answer_that_trickles_in_is_waited_for_no_longer_than_for_answer() -> None:
    engine = Talking(b"application/json", b" ")
    async with (
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server,
        posting(server.sockets[0].getsockname()[1], answer_s=0.2) as transport,
    ):
        with pytest.raises(EngineFailed, match=r"no more of the answer within 0\.2 s"):
            await transport.post("/v1/x", b"{}")
        await engine.left.wait()


async def test_a_redirect_is_not_followed_and_an_endless_answer_not_kept() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    redirected, connections = await asked(moved)
    assert isinstance(redirected, EngineFailed)
    assert (redirected.code, connections) == ("engine_invalid", 1)
    endless, _ = await asked(http("200 OK", b" " * (LARGEST_ANSWER + 1)))
    assert isinstance(endless, EngineFailed)
    assert endless.status == 502
