"""One answer's way through a connection, byte by byte, on a transport in memory."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from ratchet.gateway.engines.http_connection import (
    HELD,
    KEEP_ALIVE_S,
    LARGE,
    OVERHEAD,
    PIECE,
    BadAnswer,
    BrokenOff,
    Connection,
    HttpReply,
    TooSlow,
)

HEAD = b"POST / HTTP/1.1\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; a test plays the server."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.protocol: Connection
        self.written = b""
        self.closed = False
        self.reads = True
        self.unsent = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Wire:
    """A connection, and what became of it."""

    def __init__(self, sock: socket.socket) -> None:
        self.free: list[float] = []
        """The seconds of life of each time that it was handed back."""
        self.lost = False
        self.connection = Connection(lambda _, life_s: self.free.append(life_s), self._forget)
        self.transport = MemoryTransport(sock)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def _forget(self, _: Connection) -> None:
        self.lost = True

    def ask(self, *body: bytes, first_byte_s: float = 30) -> asyncio.Task[HttpReply]:
        return asyncio.ensure_future(self.connection.exchange(HEAD, body, first_byte_s))

    async def answered(self, *pieces: bytes, eof: bool = False) -> tuple[HttpReply, bytes]:
        """The answer that comes in these pieces, and its body."""
        asked = self.ask()
        await asyncio.sleep(0)
        self.receive(*pieces)
        if eof:
            self.connection.eof_received()
        reply = await asked
        return reply, await reply.read(1 << 20, 30)

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            if piece and not self.transport.closed:
                self.connection.data_received(piece)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as one:
        yield one


@pytest.fixture
async def wire(sock: socket.socket) -> Wire:
    return Wire(sock)


ANSWERS = {
    "length": (PLAIN, b"{}", True),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n", b"{}", True),
    "trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\netag: 9\r\nx: y\r\n\r\n",
        b"{}",
        True,
    ),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + PLAIN, b"{}", True),
    "close": (b"HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\n{}", b"{}", False),
    "http 1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"{}", False),
    "http 1.0, kept": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}", b"{}", True),
    "surplus": (PLAIN + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray", b"{}", False),
    "surplus letter": (PLAIN + b"}", b"{}", False),
    "surplus after close": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}}", b"{}", False),
    "gzip": (
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (len(gzip.compress(b"{}", mtime=0)), gzip.compress(b"{}", mtime=0)),
        b"{}",
        True,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_same_wherever_it_is_cut(name: str, sock: socket.socket) -> None:
    sent, body, kept = ANSWERS[name]
    cuts = [(sent[:at], sent[at:]) for at in range(len(sent))]
    for pieces in [*cuts, tuple(sent[at : at + 1] for at in range(len(sent)))]:
        wire = Wire(sock)
        reply, got = await wire.answered(*pieces)
        assert (got, reply.status) == (body, 204 if name == "nothing" else 200), pieces
        assert b"link" not in reply.headers
        assert b"x" not in reply.headers
        # A byte after the end that comes by itself meets a free connection, and closes it.
        assert (not wire.transport.closed) == kept, pieces
        assert wire.free == [KEEP_ALIVE_S] or not kept


async def test_bytes_that_no_request_asked_for_close_the_connection(sock: socket.socket) -> None:
    fresh, kept = Wire(sock), Wire(sock)
    await kept.answered(PLAIN)
    for wire in (fresh, kept):
        wire.receive(PLAIN)
        assert wire.transport.closed


async def test_an_answer_without_length_ends_with_its_connection(wire: Wire) -> None:
    reply, body = await wire.answered(b"HTTP/1.1 200 OK\r\n\r\n{", b"}", eof=True)
    assert (reply.status, body, wire.free) == (200, b"{}", [])


def chunked(head: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"<html>",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 099 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
        b"HTTP/1.1 200 OK\r\nx: a\r\n folded\r\ncontent-length: 0\r\n\r\n",
        chunked(b"transfer-encoding: gzip"),
        chunked(b"transfer-encoding: gzip, chunked"),
        chunked(b"transfer-encoding: gzip\r\ntransfer-encoding: chunked"),
        chunked(b"transfer-encoding: chunked, identity"),
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * OVERHEAD + b"\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * (OVERHEAD // 6),
        b"HTTP/1.1 200 " + b"a" * OVERHEAD,
        b"HTTP/1.1 103 Early\r\n\r\n" * (OVERHEAD // 22 + 1),
    ],
)
async def test_what_is_no_answer_is_refused_and_the_connection_closed(sent: bytes, wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(sent)
    with pytest.raises(BadAnswer):
        await asked
    assert wire.transport.closed


@pytest.mark.parametrize(
    "more",
    [
        b"zz\r\n",
        b"ffffffffffffffffff\r\n",
        b"1;" + b"x" * (OVERHEAD + 1),
        b"0\r\nx: " + b"a" * (OVERHEAD + 1),
        b"0\r\ncontent-length: 2\r\n\r\n",
    ],
    ids=["length", "overflow", "extension", "trailer", "length after the body"],
)
async def test_what_breaks_the_frame_of_a_body_is_refused_after_what_came(more: bytes, wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", more)
    chunks = (await asked).chunks(30)
    assert await anext(chunks) == b"{}"
    with pytest.raises(BadAnswer):
        await anext(chunks)
    assert wire.transport.closed


async def test_a_body_that_is_cut_off_gives_what_came_and_then_fails(wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}")
    wire.connection.eof_received()
    chunks = (await asked).chunks(30)
    assert await anext(chunks) == b"{}"
    with pytest.raises(BrokenOff):
        await anext(chunks)


async def test_a_reader_who_is_slow_stops_the_server_and_no_byte_is_lost(wire: Wire) -> None:
    size = 4 * HELD
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, b"a" * HELD)
    assert wire.transport.reads
    wire.receive(b"b")
    assert not wire.transport.reads
    chunks = (await asked).chunks(30)
    assert await anext(chunks) == b"a" * HELD + b"b"
    assert wire.transport.reads
    wire.receive(b"c" * (size - HELD - 1))
    assert await anext(chunks) == b"c" * (size - HELD - 1)
    assert [one async for one in chunks] == []
    assert (wire.transport.reads, wire.free) == (True, [KEEP_ALIVE_S])


async def test_connection_with_an_unread_answer_is_free_and_it_can_be_read(wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * HELD), b"a" * (2 * HELD))
    first = await asked
    assert (wire.transport.reads, wire.free) == (True, [KEEP_ALIVE_S])
    second, body = await wire.answered(PLAIN)
    assert (second.status, body) == (200, b"{}")
    asked = wire.ask()
    await asyncio.sleep(0)
    await first.aclose()  # the answer of the first has come: it has no connection any more
    assert await first.read(2 * HELD, 30) == b"a" * (2 * HELD)
    wire.receive(PLAIN)
    assert await (await asked).read(2, 30) == b"{}"


async def test_reader_who_gives_up_at_the_end_does_not_close_the_next_exchange(wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(PLAIN[:-1])
    reply = await asked
    chunks = reply.chunks(30)
    assert await anext(chunks) == b"{"
    reading = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    wire.receive(PLAIN[-1:])
    following = wire.ask()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    wire.receive(PLAIN)
    assert await (await following).read(2, 30) == b"{}"
    assert not wire.transport.closed


async def test_a_second_reader_of_one_answer_is_an_error_of_the_caller(wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(PLAIN[:-2])
    reply = await asked
    reading = asyncio.ensure_future(reply.read(2, 30))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two readers"):
        await reply.read(2, 30)
    wire.receive(b"{}")
    assert await reading == b"{}"


@pytest.mark.parametrize(
    ("header", "life"),
    [(b"timeout=5", 4.0), (b"timeout=60, max=100", 4.0), (b"max=3, timeout=3", 2.0), (b"timeout=1", None), (b"x", 4.0)],
)
async def test_a_connection_is_kept_for_less_than_its_server_allows(
    header: bytes, life: float | None, wire: Wire
) -> None:
    await wire.answered(b"HTTP/1.1 200 OK\r\nkeep-alive: " + header + b"\r\ncontent-length: 2\r\n\r\n{}")
    assert wire.free == ([life] if life else [])
    assert wire.transport.closed == (life is None)


async def test_small_request_is_one_write_and_a_large_one_as_the_server_takes_it(wire: Wire) -> None:
    wire.connection.pause_writing()
    asked = wire.ask(b"a" * (LARGE // 2), b"b" * (LARGE // 2))
    await asyncio.sleep(0)
    assert wire.transport.written == HEAD + b"a" * (LARGE // 2) + b"b" * (LARGE // 2)
    wire.receive(PLAIN)
    await asked
    wire.transport.written = b""
    asked = wire.ask(b"a" * LARGE, b"b")
    for _ in range(10):
        await asyncio.sleep(0)
    assert wire.transport.written == HEAD + b"a" * PIECE
    wire.connection.resume_writing()
    for _ in range(10):
        await asyncio.sleep(0)
    assert wire.transport.written == HEAD + b"a" * LARGE + b"b"
    wire.receive(PLAIN)
    await asked
    assert wire.free == [KEEP_ALIVE_S] * 2


async def test_answer_before_the_end_of_a_large_request_stops_it(wire: Wire) -> None:
    wire.connection.pause_writing()
    asked = wire.ask(b"a" * LARGE, b"b")
    for _ in range(3):
        await asyncio.sleep(0)
    wire.receive(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
    reply = await asked
    assert (reply.status, await reply.read(2, 30)) == (413, b"{}")
    assert wire.transport.written == HEAD + b"a" * PIECE
    assert wire.transport.closed


async def test_request_still_buffered_when_its_answer_is_whole_ends_connection(wire: Wire) -> None:
    wire.transport.unsent = 1
    await wire.answered(PLAIN)
    assert (wire.free, wire.transport.closed) == ([], True)


@pytest.mark.parametrize("body", [b"", b"a" * (LARGE + 1)], ids=["no head", "not taken"])
async def test_a_server_that_is_silent_is_left_in_time(body: bytes, wire: Wire) -> None:
    wire.connection.pause_writing()
    with pytest.raises(TooSlow, match=r"no answer within 0\.05 s") as slow:
        await wire.ask(body, first_byte_s=0.05)
    assert (slow.value.waiting_for, wire.transport.closed) == ("head", True)


async def test_too_long_a_pause_in_the_body_ends_it_whatever_the_head_took(wire: Wire) -> None:
    asked = wire.ask(first_byte_s=0.2)
    await asyncio.sleep(0)
    wire.receive(PLAIN[:-1])
    reply = await asked
    with pytest.raises(TooSlow, match=r"no more of the answer within 0\.4 s") as slow:
        await reply.read(2, 0.4)  # a timer of the head is set before this one
    assert (slow.value.waiting_for, wire.transport.closed) == ("body", True)


@pytest.mark.parametrize("waits_for", ["head", "body"])
async def test_a_cancelled_wait_closes_the_connection_at_once(waits_for: str, wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    if waits_for == "body":
        wire.receive(PLAIN[:-1])
        reply = await asked
        asked = asyncio.ensure_future(reply.read(2, 30))  # type: ignore[assignment]
        await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert wire.transport.closed


def packed(encoding: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (encoding, len(body), body)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(b"{}" * 500_000)),
        (b"X-Gzip", gzip.compress(b"{}" * 500_000)),
        (b"deflate", zlib.compress(b"{}" * 500_000)),
        (b"deflate", zlib.compress(b"{}" * 500_000, wbits=-15)),
        (b"identity", b"{}" * 500_000),
    ],
    ids=["gzip", "x-gzip", "zlib", "deflate", "identity"],
)
async def test_a_packed_body_is_unpacked_in_bounded_parts(encoding: bytes, body: bytes, wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(packed(encoding, body))
    parts = [part async for part in (await asked).chunks(30)]
    assert b"".join(parts) == b"{}" * 500_000
    assert encoding == b"identity" or max(map(len, parts)) <= PIECE


async def test_a_few_bytes_that_unpack_to_very_many_are_refused_at_the_limit(wire: Wire) -> None:
    asked = wire.ask()
    await asyncio.sleep(0)
    wire.receive(packed(b"gzip", gzip.compress(bytes(100_000_000))))
    with pytest.raises(BadAnswer, match="more than 1000000 bytes"):
        await (await asked).read(1_000_000, 30)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", b"{}"),
        (b"gzip", gzip.compress(b"{}")[:-1]),
        (b"gzip", gzip.compress(b"{}") + b"x"),
        (b"gzip", gzip.compress(b"{}") * 2),
        (b"gzip", zlib.compress(b"{}")),
        (b"deflate", b"{}"),
        (b"deflate", zlib.compress(b"{}")[:-1]),
    ],
    ids=["plain", "cut", "more", "twice", "zlib as gzip", "plain as deflate", "cut deflate"],
)
async def test_a_body_that_is_packed_wrong_is_refused(encoding: bytes, body: bytes, wire: Wire) -> None:
    with pytest.raises(BadAnswer):
        await wire.answered(packed(encoding, body))


@pytest.mark.parametrize("encoding", [b"br", b"gzip, gzip", b"x" * 100])
async def test_an_encoding_that_was_not_asked_for_is_refused_by_its_name(encoding: bytes, wire: Wire) -> None:
    with pytest.raises(BadAnswer, match=f"an encoding that was not asked for: {encoding[:40].decode()}$"):
        await wire.answered(packed(encoding, b"{}"))
