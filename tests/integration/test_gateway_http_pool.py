"""The gateway's HTTP client on real sockets, with servers that misbehave: on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import resource
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from errno import ECONNREFUSED, EMFILE
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratchet.bus.testing import eventually
from ratchet.gateway.domain.replicas import Health
from ratchet.gateway.engines.http_connection import BrokenOff, ConnectFailed
from ratchet.gateway.engines.http_pool import HttpPool
from ratchet.gateway.engines.http_transport import Address, HttpTransport
from ratchet.local.local_stack.ports import free_ports

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
LONG_S = 40.0
LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
).mark

Talk = Callable[["Visit"], Awaitable[None]]


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test on asyncio's loop and on uvloop, whose transports differ; the gateway runs on the latter."""

    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        async def tested() -> None:
            await test(**fixtures)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(tested())

    takes = inspect.signature(test)
    new_loop = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = takes.replace(parameters=[*takes.parameters.values(), new_loop])  # type: ignore[attr-defined]
    run.__name__, run.__module__ = test.__name__, test.__module__
    run.pytestmark = [*getattr(test, "pytestmark", []), LOOPS]  # type: ignore[attr-defined]
    return run


class Visit:
    """One connection at the server."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request."""
        head = await self.head()
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head, await self._reader.readexactly(int(length))

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def gone(self) -> bytes:
        """What the client sends until it closes."""
        with suppress(ConnectionError):
            return await self._reader.read()
        return b""


class Server:
    """Plays `talk` with every connection, and closes it after that."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.visits = 0
        self.ended = 0
        """Connections that are closed."""
        self.url = ""

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._talk(Visit(self.visits, reader, writer))
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.ended += 1

    async def closed(self, number: int) -> None:
        """Until so many connections are closed."""

        async def ended() -> bool:
            return self.ended == number

        await eventually(ended)


@asynccontextmanager
async def served(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(talk)
    listener = await asyncio.start_server(server.meet, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{port}"
    try:
        yield server
    finally:
        listener.close()
        await server.closed(server.visits)
        await listener.wait_closed()


@asynccontextmanager
async def pooled(url: str, headers: dict[str, str] | None = None, connect_s: float = LONG_S) -> AsyncIterator[HttpPool]:
    pool = HttpPool(url, headers or {}, connect_s=connect_s)
    try:
        yield pool
    finally:
        await pool.close()


async def ask(pool: HttpPool, body: bytes = b"[]") -> tuple[int, bytes]:
    async with aclosing(await pool.post("/x", body, first_byte_s=LONG_S)) as reply:
        return reply.status, await reply.read(1 << 28, LONG_S)


async def willing(visit: Visit) -> None:
    """A server that answers every request."""
    while True:
        await visit.request()
        await visit.answer(OK)


@on_both_loops
async def test_request_is_what_it_should_be_and_next_one_uses_same_connection() -> None:
    heard: list[tuple[bytes, bytes]] = []

    async def talk(visit: Visit) -> None:
        while True:
            heard.append(await visit.request())
            await visit.answer(OK)

    async with served(talk) as server:
        url = server.url.replace("http://", "http://me:p%40ss@") + "/v1/"
        async with pooled(url, {"Content-Type": "application/json", "x-a": "1"}) as pool:
            for body in (b"[1]", (b"[", b"", b"2]"), ()):
                reply = await pool.post(
                    "/chat?a=b", body, [(b"X-A", b"2"), (b"x-b", "\u00e9".encode())], first_byte_s=9
                )
                assert await reply.read(2, LONG_S) == b"{}"
        assert server.visits == 1
    lines = [
        b"POST /v1/chat?a=b HTTP/1.1",
        b"content-length: 3",
        b"host: " + server.url.removeprefix("http://").encode(),
        b"accept-encoding: identity",
        b"authorization: Basic bWU6cEBzcw==",
        b"content-type: application/json",
        b"X-A: 2",
        b"x-b: \xc3\xa9",
    ]
    assert heard[0] == (b"\r\n".join(lines) + b"\r\n\r\n", b"[1]")
    assert [body for _, body in heard] == [b"[1]", b"[2]", b""]


@on_both_loops
async def test_requests_at_the_same_time_have_a_connection_each_and_all_are_kept() -> None:
    everybody = asyncio.Event()
    waiting = 0

    async def talk(visit: Visit) -> None:
        nonlocal waiting
        while True:
            await visit.request()
            waiting += 1
            if waiting == 50:
                everybody.set()
            await everybody.wait()
            await visit.answer(OK)

    async with served(talk) as server, pooled(server.url) as pool:
        assert await asyncio.gather(*(ask(pool) for _ in range(50))) == [(200, b"{}")] * 50
        assert await asyncio.gather(*(ask(pool) for _ in range(50))) == [(200, b"{}")] * 50
        assert server.visits == 50


@on_both_loops
async def test_a_kept_connection_that_the_server_closed_is_not_used() -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.answer(OK)

    async with served(talk) as server, pooled(server.url) as pool:
        for number in (1, 2):
            assert await ask(pool) == (200, b"{}")
            await server.closed(number)
            assert server.visits == number


@on_both_loops
async def test_close_that_the_loop_has_not_seen_is_noticed_before_a_request() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def answer() -> socket.socket:
            one, _ = await loop.sock_accept(listener)
            assert await loop.sock_recv(one, 1000)
            await loop.sock_sendall(one, OK)
            return one

        async with pooled(f"http://127.0.0.1:{listener.getsockname()[1]}") as pool:
            for _ in range(3):
                answering = asyncio.ensure_future(answer())
                assert await ask(pool) == (200, b"{}")
                one = await answering
                one.close()  # and the next request is sent before the loop looks


@on_both_loops
async def test_a_request_that_may_have_arrived_is_never_sent_again() -> None:
    heard: list[bytes] = []

    async def talk(visit: Visit) -> None:
        heard.append((await visit.request())[1])
        await visit.answer(OK)
        heard.append((await visit.request())[1])

    async with served(talk) as server, pooled(server.url) as pool:
        await ask(pool, b"1")
        with pytest.raises(BrokenOff):
            await ask(pool, b"2")
        assert (heard, server.visits) == ([b"1", b"2"], 1)


@on_both_loops
async def test_idle_connection_is_closed_before_the_time_that_its_server_named() -> None:
    closed: list[bytes] = []

    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.answer(b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2\r\ncontent-length: 2\r\n\r\n{}")
        async with asyncio.timeout(LONG_S):
            closed.append(await visit.gone())

    async with served(talk) as server, pooled(server.url) as pool:
        await asyncio.gather(ask(pool), ask(pool))
        await server.closed(2)
        assert closed == [b"", b""]


@on_both_loops
async def test_a_server_that_resets_the_connection_broke_it_off() -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        one = visit.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        visit.writer.transport.abort()

    async with served(talk) as server, pooled(server.url) as pool:
        with pytest.raises(BrokenOff):
            await ask(pool)


@on_both_loops
async def test_chunks_come_as_the_server_sends_them() -> None:
    may_go_on = asyncio.Semaphore(0)

    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(100):
            await may_go_on.acquire()
            await visit.answer(b"2\r\n%02d\r\n" % number)
        await visit.answer(b"0\r\nx: y\r\n\r\n")
        await willing(visit)

    async with served(talk) as server, pooled(server.url) as pool:
        async with aclosing(await pool.post("/x", b"", first_byte_s=LONG_S)) as reply:
            may_go_on.release()
            got: list[bytes] = []
            async for piece in reply.chunks(LONG_S):
                got.append(piece)
                may_go_on.release()
        assert got == [b"%02d" % number for number in range(100)]
        assert await ask(pool) == (200, b"{}")
        assert server.visits == 1


@on_both_loops
async def test_end_of_pool_breaks_off_what_is_under_way_and_leaves_nothing_open() -> None:
    asked = asyncio.Event()

    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.answer(OK)
        await visit.request()
        asked.set()
        await visit.gone()

    async with served(talk) as server:
        pool = HttpPool(server.url, {}, connect_s=LONG_S)
        await ask(pool)
        asking = asyncio.ensure_future(ask(pool))
        await asked.wait()
        await pool.close()
        with pytest.raises(BrokenOff):
            await asking
        with pytest.raises(ConnectFailed):
            await ask(pool)
        await pool.close()


@on_both_loops
async def test_a_large_body_arrives_whole_at_a_server_that_takes_its_time() -> None:
    body = os.urandom(1 << 20) * 8

    async def talk(visit: Visit) -> None:
        while True:
            heard = await visit.request()
            await visit.answer(OK if heard[1] == body else b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n")

    async with served(talk) as server, pooled(server.url) as pool:
        for _ in range(2):
            reply = await pool.post("/x", (body[:10], body[10:]), first_byte_s=LONG_S)
            assert reply.status == 200
        assert server.visits == 1


def fickle(draw: random.Random) -> Talk:
    """A server that sends back what it gets, in two pieces, and breaks off or sends too much now and then."""

    async def talk(visit: Visit) -> None:
        fate = 1.0
        while fate >= 0.3:
            _, body = await visit.request()
            fate = draw.random()
            frame = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            cut = draw.randrange(len(frame))
            await visit.answer(frame[:cut])
            await turns_of_the_loop(draw.randrange(4))
            if fate >= 0.1:
                await visit.answer(frame[cut:] + (b"HTTP/1.1 200 OK\r\n\r\nstray" if fate < 0.2 else b""))

    return talk


async def turns_of_the_loop(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def fate_of(pool: HttpPool, body: bytes, draw: random.Random) -> str:
    """What becomes of a call that its caller cancels now and then. An answer must be the call's own."""
    asking = asyncio.ensure_future(ask(pool, body))
    if draw.random() < 0.2:
        await turns_of_the_loop(draw.randrange(20))
        asking.cancel()
    try:
        assert await asking == (200, body)
    except asyncio.CancelledError:
        return "cancelled"
    except BrokenOff:
        return "broken off"
    return "answered"


@on_both_loops
async def test_every_answer_belongs_to_its_call_whatever_others_cancel() -> None:
    draw = random.Random(7)
    fates = Counter[str]()

    async def caller(first: int) -> None:
        for number in range(first, first + 100):
            fates[await fate_of(pool, b"%d " % number * draw.randrange(1, 3000), draw)] += 1

    async with served(fickle(draw)) as server:
        async with pooled(server.url) as pool:
            await asyncio.gather(*(caller(first * 100) for first in range(8)))
        await server.closed(server.visits)
    assert min(fates["cancelled"], fates["broken off"]) > 20
    assert fates["answered"] > 400


@on_both_loops
async def test_a_refused_connection_is_an_error_of_its_own() -> None:
    (port,) = free_ports(1)
    async with pooled(f"http://127.0.0.1:{port}") as pool:
        with pytest.raises(ConnectFailed) as refused:
            await ask(pool)
    error = refused.value
    assert error.os_error is not None
    assert (error.os_error.errno, error.timed_out, error.own_limit) == (ECONNREFUSED, False, False)


@on_both_loops
async def test_a_name_without_address_is_no_connection() -> None:
    async with pooled("http://engine.invalid") as pool:
        with pytest.raises(ConnectFailed) as failed:
            await asyncio.gather(ask(pool), ask(pool))
    assert (failed.value.timed_out, failed.value.own_limit) == (False, False)
    assert isinstance(failed.value.os_error, socket.gaierror)


@on_both_loops
async def test_a_name_leads_to_the_address_that_answers() -> None:
    async with served(willing) as server, pooled(server.url.replace("127.0.0.1", "localhost")) as pool:
        assert await asyncio.gather(ask(pool), ask(pool)) == [(200, b"{}")] * 2


@on_both_loops
async def test_a_connection_that_does_not_come_about_in_time_is_given_up() -> None:
    async def talk(visit: Visit) -> None:
        await visit.gone()

    async with served(talk) as server, pooled(server.url.replace("http://", "https://"), connect_s=0.1) as pool:
        with pytest.raises(ConnectFailed, match=r"within 0\.1 s") as slow:
            await ask(pool)
    assert slow.value.timed_out


@contextmanager
def no_file_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_process_without_a_file_left_does_not_blame_the_server(host: str) -> None:
    async with served(willing) as server, pooled(server.url.replace("127.0.0.1", host)) as pool:
        with no_file_left(), pytest.raises(ConnectFailed) as failed:
            await ask(pool)
        assert (failed.value.own_limit, failed.value.timed_out) == (True, False)
        assert host == "localhost" or (failed.value.os_error is not None and failed.value.os_error.errno == EMFILE)
        assert await ask(pool) == (200, b"{}")


async def test_a_process_without_a_file_left_does_not_know_how_a_replica_is() -> None:
    async with served(willing) as server:
        transport = HttpTransport("the engine", Address(server.url, {}, connect_s=5.0, answer_s=5.0, idle_s=5.0))
        try:
            with no_file_left():
                assert await transport.check_health() is Health.UNKNOWN
            assert await transport.check_health() is Health.WELL
        finally:
            await transport.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that is signed by itself, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    pem, secret = folder / "ca.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(secret), "-out", str(pem)]
    subprocess.run([*made.split(), *more], check=True, capture_output=True)
    return pem


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@on_both_loops
async def test_an_own_ca_is_trusted_where_the_environment_names_it(
    certificate: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    async with served(willing, tls) as server:
        async with pooled(server.url) as pool:
            with pytest.raises(ConnectFailed, match="certificate"):
                await ask(pool)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with pooled(server.url) as pool:
            before = server.visits
            for _ in range(3):
                assert await ask(pool, bytes(3 << 20)) == (200, b"{}")
            assert server.visits == before + 1


@on_both_loops
async def test_a_stream_and_its_abandonment_work_over_tls(
    certificate: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2\r\n{}\r\n")
        await visit.gone()

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with served(talk, tls) as server, pooled(server.url) as pool:
        async with aclosing(await pool.post("/x", b"", first_byte_s=LONG_S)) as reply:
            assert await anext(reply.chunks(LONG_S)) == b"{}"
        await server.closed(1)
