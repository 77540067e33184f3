"""Bounds on connections, and how a stop treats open ones: on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.service.asgi import JsonApi, Request, Response, json_response
from ratchet.core.service.http import Bounds, HttpServer
from ratchet.gateway.error_shapes import error_json
from tests.support.running import http_client, running

HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"


class Api:
    """Answers once a test lets it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def handle(self, _: Request) -> Response:
        self.asked.set()
        await self.may_answer.wait()
        return json_response({"ok": True})


@asynccontextmanager
async def served(api: Api, **bounds: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(JsonApi(lambda _, __: api.handle, 1000), "127.0.0.1", 0, bounds=Bounds(**bounds))
    async with running(server):
        await eventually(lambda: _listens(server))
        yield server


async def _listens(server: HttpServer) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except ConnectionError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.mark.parametrize("sent", [b"", b"POST /x HT", HEAD, HEAD + b"\r\n{"], ids=["nothing", "line", "head", "body"])
async def test_a_request_that_never_ends_is_cut_off_and_its_place_is_free_again(sent: bytes) -> None:
    api = Api()
    api.may_answer.set()
    async with served(api, header_s=0.2, body_s=0.2, connections=2, per_address=2) as server:
        half_open = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for _, writer in half_open:
            writer.write(sent)
        for reader, writer in half_open:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
            writer.close()
        async with http_client() as http:
            answer = await http.post(f"http://127.0.0.1:{server.port}/x", json={})
            assert answer.status_code == 200


async def test_idle_connection_is_closed_after_its_time_and_by_clients_before() -> None:
    api = Api()
    api.may_answer.set()
    async with served(api, idle_s=600) as patient, served(api, idle_s=0) as hasty:
        stays = asyncio.create_task(conversation(patient))
        await api.asked.wait()  # with the same time for both, the one that is asked first would close first
        assert (await asyncio.wait_for(conversation(hasty), 60)).endswith(b'{"ok":true}')
        assert not stays.done()
        stays.cancel()
    clients = httpx.Limits().keepalive_expiry
    assert clients is not None
    assert Bounds().idle_s > 2 * clients


async def conversation(server: HttpServer) -> bytes:
    """What a server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"\r\n{}")
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(("connections", "per_address"), [(3, 3), (6, 3)])
async def test_the_connection_that_was_idle_longest_makes_room_for_one_too_many(
    connections: int, per_address: int
) -> None:
    api = Api()
    async with served(api, connections=connections, per_address=per_address) as server:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        (busy_reader, busy), *idle = opened
        busy.write(HEAD + b"\r\n{}")
        await api.asked.wait()
        api.may_answer.set()
        await busy_reader.readuntil(b'{"ok":true}')
        for reader, writer in idle:
            writer.write(HEAD + b"\r\n{}")
            await reader.readuntil(b'{"ok":true}')
        api.may_answer.clear()
        api.asked.clear()
        busy.write(HEAD + b"\r\n{}")  # it was idle before all others
        await api.asked.wait()
        for reader, writer in idle:
            more_reader, more = await asyncio.open_connection("127.0.0.1", server.port)
            opened.append((more_reader, more))
            more.write(HEAD + b"\r\n{}")
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
        one_too_many, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await one_too_many.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        api.may_answer.set()
        for reader, writer in (opened[0], *opened[3:]):
            await reader.readuntil(b'{"ok":true}')
            writer.close()


async def test_empty_lines_between_requests_hold_no_connection_open() -> None:
    api = Api()
    api.may_answer.set()
    async with served(api, header_s=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD + b"\r\n{}")
        assert await reader.readexactly(8) == b"HTTP/1.1"
        await reader.readuntil(b'{"ok":true}')
        writer.write(b"\r\n")
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_connections_beyond_the_bound_of_an_address_get_a_503() -> None:
    api = Api()
    api.may_answer.set()
    async with served(api, connections=10, per_address=3) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        writer.close()
        idle[0][1].close()
        async with http_client() as http:
            url = f"http://127.0.0.1:{server.port}/x"

            async def taken() -> bool:
                return (await http.post(url, json={})).status_code == 200

            await eventually(taken)
        for _, one in idle[1:]:
            one.close()


async def exchange(server: HttpServer, sent: bytes) -> bytes:
    """All that comes back to some bytes, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        with suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
        with suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 40)
        return b""
    finally:
        writer.close()


JSON = b"content-type: application/json"
LINE = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
CHUNKED = LINE + b"transfer-encoding: chunked\r\n\r\n"
TOO_MUCH = {
    "one header": LINE + b"x-ratchet-trajectory: " + b"7" * 1_000_000,
    "many headers": LINE + b"x: y\r\n" * 100_000,
    "a name": LINE + b"x" * 1_000_000,
    "a path": b"POST /" + b"x" * 1_000_000,
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 100_000,
    "a whole request": LINE + b"x: " + b"7" * 80_000 + b"\r\n\r\n",
    "a whole request with many headers": LINE + b"name: value\r\n" * 7_000 + b"\r\n",
    "a whole request with trailers": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"name: value\r\n" * 7_000 + b"\r\n",
    "chunk extensions": CHUNKED + b"2;" + b"x" * 1_000_000,
}


@pytest.mark.parametrize("sent", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_header_bytes_are_bounded_and_the_sender_gets_an_error(sent: bytes) -> None:
    api = Api()
    async with served(api) as server:
        answer = await exchange(server, sent)
        assert (
            answer == b""
            or msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"
        )
        assert not api.asked.is_set()


@pytest.mark.parametrize("first", [b"host: evil.example", b"origin: http://evil.example", b"content-type: text/plain"])
async def test_a_repeated_header_that_identifies_the_sender_is_refused(first: bytes) -> None:
    name = first.partition(b":")[0]
    second = {b"host": b"host: localhost", b"origin": b"origin: http://localhost", b"content-type": JSON}[name]
    others = [line for line in (b"host: localhost", JSON) if not line.startswith(name)]
    head = [b"POST /x HTTP/1.1", *others, first, second, b"content-length: 2", b"connection: close", b"", b"{}"]
    api = Api()
    async with served(api) as server:
        answer = await exchange(server, b"\r\n".join(head))
    assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "repeated_header"
    assert not api.asked.is_set()


@pytest.mark.parametrize("path", ["/v1/messages", "/t/run/v1/messages?beta=true", "/v1/messages/count_tokens", "/v1/x"])
async def test_what_the_server_refuses_has_the_shape_of_its_path(path: str) -> None:
    line = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode()
    refused = {
        "unsupported_media_type": line + b"content-type: text/plain\r\ncontent-length: 2\r\n\r\n{}",
        "headers_too_large": line + b"x: " + b"7" * 80_000 + b"\r\n\r\n",
    }
    async with served(Api(), error_json=error_json) as server:
        for code, sent in refused.items():
            body = msgspec.json.decode((await exchange(server, sent)).partition(b"\r\n\r\n")[2])
            if path == "/v1/x":
                assert body["error"]["code"] == code
            else:
                assert (body["type"], body["error"]["details"]) == ("error", {"error_code": code})


async def test_a_body_in_small_chunks_is_a_body() -> None:
    api = Api()
    api.may_answer.set()
    async with served(api) as server:
        body = b"{" + b" " * 900 + b"}"
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        answer = await exchange(server, CHUNKED + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_few_requests_may_wait_on_a_connection_and_many_end_it() -> None:
    api = Api()
    request = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with served(api, connections=2, per_address=2) as server:
        asking = asyncio.create_task(exchange(server, request * 4 + request[:-2] + b"connection: close\r\n\r\n"))
        await api.asked.wait()
        assert await exchange(server, request * 5_000) == b""
        api.may_answer.set()
        assert (await asking).count(b"HTTP/1.1 200 ") == 5


async def test_client_that_reads_nothing_is_cut_off_and_a_slow_one_is_not() -> None:
    large = b'"' + b"x" * 12_000_000 + b'"'

    async def answer(_: Request) -> Response:
        return Response(200, large)

    bounds = Bounds(read_s=0.5, connections=2, per_address=1)
    server = HttpServer(JsonApi(lambda _, __: answer, 1000), "127.0.0.1", 0, bounds=bounds)
    async with running(server):
        await eventually(lambda: _listens(server))
        _, deaf = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        deaf.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.write(LINE + b"content-length: 0\r\n\r\n")

        async def taken() -> int:
            return len(await exchange(server, LINE + b"content-length: 0\r\n\r\n"))

        async def whole() -> bool:
            return await taken() > len(large)

        assert await eventually(whole), "the place of the one that takes nothing was not free again"
        deaf.close()


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
async def test_an_upgrade_that_is_not_offered_is_a_request_like_any_other(protocol: str) -> None:
    api = Api()
    api.may_answer.set()
    upgrade = f"connection: upgrade, close\r\nupgrade: {protocol}\r\nsec-websocket-key: dGhlIHNhbXBsZQ==\r\n".encode()
    head = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
    async with served(api, connections=2, per_address=1) as server:
        for _ in range(4):

            async def answered() -> bool:
                return (await exchange(server, head + upgrade + b"\r\n{}")).startswith(b"HTTP/1.1 200 ")

            assert await eventually(answered)


async def test_a_stop_lets_calls_end_that_are_under_way() -> None:
    api = Api()
    server = HttpServer(JsonApi(lambda _, __: api.handle, 1000), "127.0.0.1", 0, bounds=Bounds(drain_s=60))
    serving = asyncio.create_task(server.run())
    async with http_client() as http:
        url = f"http://127.0.0.1:{server.port}/x"
        await eventually(lambda: _listens(server))
        calling = asyncio.create_task(http.post(url, json={}))
        await api.asked.wait()
        await server.stop()
        async with http_client() as other:
            while True:  # a stop is noticed within a tenth of a second
                try:
                    await asyncio.wait_for(other.get(url), 0.2)
                except httpx.ConnectError:
                    break
                except (TimeoutError, httpx.HTTPError):
                    continue
        assert not calling.done()
        api.may_answer.set()
        assert (await calling).status_code == 200
    await serving


async def test_stop_takes_calls_within_its_grace_and_ends_the_last_with_an_error() -> None:
    api = Api()
    bounds = Bounds(grace_s=0.5, drain_s=1)
    server = HttpServer(JsonApi(lambda _, __: api.handle, 1000), "127.0.0.1", 0, bounds=bounds)
    serving = asyncio.create_task(server.run())
    async with http_client() as http:
        url = f"http://127.0.0.1:{server.port}/x"
        await eventually(lambda: _listens(server))
        stopping = asyncio.create_task(server.stop())
        calling = asyncio.create_task(http.post(url, json={}))
        await api.asked.wait()
        await stopping
        answer = await calling
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    await serving
