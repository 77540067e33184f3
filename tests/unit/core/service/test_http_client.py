"""The one client: typed answers, errors of the tree, time limits, and certificates of one's own."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.errors import (
    BadRequest,
    Conflict,
    ContractError,
    DigestMismatch,
    Forbidden,
    InvalidMessage,
    MissingExtra,
    NotFound,
    RatchetError,
    Rejected,
    Unavailable,
    Unreadable,
    WrongState,
)
from ratchet.core.service import http_client
from ratchet.core.service.http_client import QUOTED, TIMEOUT, ApiClient, AsyncApiClient, Peer, bearer
from ratchet.core.service.problems import http_error

PEER = Peer("the gateway", "http://user:secret@gateway/")
TAKEN = {"feedback_id": "f", "trajectory_id": "t", "of_a_newer_version": 1}

Handle = Callable[[httpx.Request], httpx.Response]


async def both(handle: Handle, *args: Any, peer: Peer = PEER, **options: Any) -> list[Any]:
    """The answer, or the error, that each of the two clients gives."""
    results: list[Any] = []
    transport = httpx.MockTransport(handle)
    try:
        results.append(ApiClient(peer, transport).ask(*args, **options))
    except RatchetError as error:
        results.append(error)
    async with AsyncApiClient(peer, transport) as other:
        try:
            results.append(await other.ask(*args, **options))
        except RatchetError as error:
            results.append(error)
    return results


async def test_an_answer_is_its_struct_whatever_a_newer_service_adds() -> None:
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(202, json=TAKEN)

    peer = Peer("the gateway", "http://gateway/", bearer("key"))
    query = {"role": "support", "algorithm": None}
    answers = await both(handle, "POST", "/v1/feedback", FeedbackTaken, body={"value": 1}, query=query, peer=peer)
    assert answers == [FeedbackTaken(feedback_id="f", trajectory_id="t")] * 2
    for request in asked:
        assert str(request.url) == "http://gateway/v1/feedback?role=support"
        assert (request.read(), request.headers["content-type"]) == (b'{"value":1}', "application/json")
        assert request.headers["authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("status", "content", "kind", "message", "param"),
    [
        (404, {"error": {"message": "no such role: x", "type": "x"}}, NotFound, "no such role: x", None),
        (422, {"error": {"message": "bad", "type": "x", "param": "role", "code": "c"}}, Rejected, "bad", "role"),
        (400, {"error": {"message": "bad", "type": "x", "param": "a.b"}}, BadRequest, "bad", "a.b"),
        (409, {"error": {"message": "it runs", "type": "x"}}, WrongState, "it runs", None),
        (429, {"error": {"message": "slow", "code": 429}}, Unavailable, "the gateway answered 429: slow", None),
        (408, b"", Unavailable, "the gateway answered 408: no reason given", None),
        (425, b"", Unavailable, "the gateway answered 425: no reason given", None),
        (413, b"too large", Rejected, "too large", None),
        (400, {"detail": "no such base"}, BadRequest, "no such base", None),
        (400, {"message": "too long", "type": "x", "code": 400}, BadRequest, "too long", None),
        (400, {"error": "model not found"}, BadRequest, "model not found", None),
        (409, b"plain words", WrongState, "plain words", None),
        (409, b'{"error": 7}', WrongState, '{"error": 7}', None),
        (500, b"", Unavailable, "the gateway answered 500: no reason given", None),
        (503, {"error": {"message": "no broker"}}, Unavailable, "the gateway answered 503: no broker", None),
        (400, b"", BadRequest, "the gateway answered 400", None),
        (307, b"", Unavailable, "the gateway answered 307: no reason given", None),
    ],
)
async def test_an_error_is_one_of_the_tree_with_the_words_of_the_service(
    status: int, content: object, kind: type[RatchetError], message: str, param: str | None
) -> None:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    for error in await both(lambda _: httpx.Response(status, content=body), "GET", "/x", dict):
        assert (type(error), str(error), error.param) == (kind, message, param)


SAME = (BadRequest, Forbidden, NotFound, WrongState, Conflict, Rejected, DigestMismatch, Unavailable)
"""Classes that come back as they are."""
MADE: dict[type[RatchetError], RatchetError] = {
    InvalidMessage: InvalidMessage("it is too long", "/x"),
    Unreadable: Unreadable("key", 7, "it is damaged"),
    MissingExtra: MissingExtra("engine", "it"),
}
"""Errors whose class takes more than a message."""
BY_CODE: tuple[Any, ...] = (Conflict, DigestMismatch)
"""Classes that a status shares with another one. `Any`: their constructors lack a parameter of the others'."""


def tree(kind: type[RatchetError] = RatchetError) -> set[type[RatchetError]]:
    """The classes of `ratchet.core.errors`."""
    below = {each for child in kind.__subclasses__() for each in tree(child)}
    return {each for each in below | {kind} if each.__module__ == RatchetError.__module__}


ALL = sorted(tree(), key=lambda kind: kind.__name__)


ERRORS = [
    *(MADE.get(kind) or kind("it did not work", param="role") for kind in ALL),
    *(kind("it did not work", param="role", code="of_its_own") for kind in ALL if kind not in (*MADE, *BY_CODE)),
]
"""Each class, and each again with a code of its own."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__}-{error.code}")
async def test_every_error_comes_back_over_http_as_itself_or_as_its_nearest_kin(error: RatchetError) -> None:
    problem, kind = http_error(error), type(error)
    kin = next((same for same in SAME if kind is same or (same is Unavailable and issubclass(kind, same))), None)
    expected = kin or (BadRequest if issubclass(kind, ContractError) else Unavailable)
    for back in await both(lambda _: httpx.Response(problem.status, content=problem.json), "GET", "/x", dict):
        assert type(back) is expected
        assert back.code == problem.code or error.code is None
        assert str(problem) in str(back)
        assert http_error(back).status == (problem.status if problem.status != 500 else 503)


@pytest.mark.parametrize("kind", BY_CODE)
def test_an_error_that_is_known_by_its_code_takes_no_other(kind: Any) -> None:
    with pytest.raises(TypeError, match="code"):
        kind("it did not work", code="of_its_own")


async def test_a_peer_may_read_its_statuses_and_word_its_refusals_in_its_own_way() -> None:
    peer = Peer("the engine", "http://e", errors={500: Rejected, 429: Unavailable}, refusal="{status}: {reason}")
    for answer, kind, message in (
        (httpx.Response(500, text="broken"), Rejected, "500: broken"),
        (httpx.Response(429, text="broken"), Unavailable, "the engine answered 429: broken"),
    ):
        for error in await both(lambda _, answer=answer: answer, "GET", "/x", dict, peer=peer):
            assert (type(error), str(error)) == (kind, message)


async def test_error_quotes_little_of_another_program_and_no_secret() -> None:
    long = {"error": {"message": "x" * 100_000}}
    for error in await both(lambda _: httpx.Response(409, json=long), "GET", "/x", dict):
        assert str(error) == "x" * QUOTED
    silent = Peer("the engine", "http://e", quotable=False)
    for error in await both(lambda _: httpx.Response(503, text="the prompt"), "GET", "/x", dict, peer=silent):
        assert str(error) == "the engine answered 503"


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"feedback_id": 7}', b'{"feedback_id": "\xff"}'])
async def test_an_answer_that_is_no_answer_is_unavailable(content: bytes) -> None:
    for error in await both(lambda _: httpx.Response(200, content=content), "GET", "/x", FeedbackTaken):
        assert isinstance(error, Unavailable)
        assert "the answer of the gateway cannot be read" in str(error)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (httpx.ConnectError("refused"), "unavailable"),
        (httpx.ReadTimeout("late"), TIMEOUT),
        (httpx.PoolTimeout("full"), TIMEOUT),
        (httpx.RemoteProtocolError("the answer of a user"), "unavailable"),
        (httpx.InvalidURL("no url"), "unavailable"),
    ],
)
async def test_a_peer_that_does_not_answer_is_named_without_credentials(failure: Exception, code: str) -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise failure

    for error in await both(handle, "GET", "/x", dict):
        assert (type(error), error.code) == (Unavailable, code)
        assert str(error).startswith("the gateway does not answer at http://gateway/ (")
        assert "secret" not in str(error)
        assert "of a user" not in str(error)


async def test_an_answer_without_end_is_not_kept() -> None:
    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 2**24

    for error in await both(lambda _: httpx.Response(200, stream=Endless()), "GET", "/x", dict):
        assert str(error) == f"the gateway answers with more than {http_client.ANSWER_BYTES} bytes"


async def test_an_answer_that_only_trickles_is_given_up() -> None:
    class Trickling(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0)
                yield b" "

    peer = Peer("the gateway", "http://gateway", timeout_s=0.05)
    for error in await both(lambda _: httpx.Response(200, stream=Trickling()), "GET", "/x", dict, peer=peer):
        assert (type(error), error.code) == (Unavailable, TIMEOUT)


async def test_headers_that_only_trickle_are_given_up() -> None:
    async def hint(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each hint ends a read of the client. The answer, an empty one, comes late."""
        until = time.monotonic() + 5
        with suppress(ConnectionError):
            while time.monotonic() < until:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(hint, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peer = Peer("the gateway", url, timeout_s=0.5)
        with pytest.raises(Unavailable) as waited:
            await asyncio.to_thread(ApiClient(peer).ask, "GET", "/x", dict)
        async with AsyncApiClient(peer) as client:
            with pytest.raises(Unavailable) as awaited:
                await client.ask("GET", "/x", dict)
    assert (waited.value.code, awaited.value.code) == (TIMEOUT, TIMEOUT)


async def test_a_compressed_answer_is_neither_asked_for_nor_unpacked() -> None:
    class Packed(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield gzip.compress(msgspec.json.encode(TAKEN))

    asked_for: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked_for.append(request.headers["accept-encoding"])
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Packed())

    for error in await both(handle, "GET", "/x", FeedbackTaken):
        assert (type(error), "an encoding that was not asked for: gzip" in str(error)) == (Unavailable, True)
    assert asked_for == ["identity", "identity"]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Peer]:
    """A server at https whose certificate is signed by itself, in `folder/ca.pem`."""
    pem, secret = folder / "ca.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(secret), "-out", str(pem)]
    await asyncio.to_thread(subprocess.run, [*made.split(), *more], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = msgspec.json.encode(TAKEN)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield Peer("the gateway", f"https://localhost:{server.sockets[0].getsockname()[1]}")


async def asked(peer: Peer) -> Any:
    async with AsyncApiClient(peer) as client:
        return await client.ask("GET", "/x", FeedbackTaken)


async def test_own_ca_of_the_environment_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    async with serving(tmp_path) as peer:
        with pytest.raises(Unavailable, match="certificate"):
            await asked(peer)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert (await asked(peer)).feedback_id == "f"
        answer = await asyncio.to_thread(ApiClient(peer).ask, "GET", "/x", FeedbackTaken)
        assert answer.feedback_id == "f"
