"""A secret that no pattern knows, planted wherever a request, an answer or an event has room for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ratchet.cli.interfaces import Interface
from tests.support.hostile import changed, places
from tools.docs.api_pages import document as described

SECRET = "wisteria-umbrella-quarrel"
"""Words of a prompt: redaction, which knows secrets by their form, lets them through. Also a name, a host, a token."""

JSON = {"content-type": "application/json"}
ID = "0198c0de-0000-7000-8000-00000000cafe"
MEGABYTES = 9
"""More than any service takes."""


@dataclass(frozen=True)
class Asked:
    """One request, as bytes of a connection of its own."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    kept: int | None = None
    """Bytes of the body that are sent before the client goes away; all, and it waits for the answer, when absent."""

    def raw(self, host: str) -> bytes:
        """The bytes of the request."""
        headers = {"host": host, "connection": "close", "content-length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + self.body[: self.kept]


def operations(document: Interface | Mapping[str, Any]) -> list[tuple[str, str]]:
    """(method, path) of every operation of a service's interface, or of a document that it serves."""
    paths = (described(document) if isinstance(document, Interface) else document)["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def requests(method: str, path: str, valid: Sequence[Any]) -> Iterator[Asked]:
    """Everything that can be wrong with a request of one route, and what is right; `valid`: bodies that it takes."""
    named = _filled(path, ID)
    yield Asked(method, _filled(path, SECRET))
    yield Asked(method, _filled(path, f"%0a{SECRET}%00"))
    yield Asked(method, f"{named}?{SECRET}={SECRET}&dry_run={SECRET}&limit={SECRET}&cursor={SECRET}#{SECRET}")
    yield Asked(method, f"/t/{SECRET}{named}", JSON, b"{}")
    yield Asked(method, f"http://{SECRET}{named}", JSON, b"{}")
    yield Asked(SECRET.upper(), named)
    for headers in _headers():
        yield Asked(method, named, headers, b"{}")
    for body in _bodies(valid):
        yield Asked(method, named, JSON, body)
    spoken = valid[0] if valid else {SECRET: SECRET}
    sealed = msgspec.json.encode(_with_secret(spoken))
    yield Asked(method, named, {"content-type": f"text/{SECRET}"}, sealed)
    yield Asked(method, named, {**JSON, "content-encoding": SECRET}, sealed)
    yield Asked(method, named, JSON, sealed, kept=len(sealed) // 2)


def too_big(method: str, path: str) -> Asked:
    """A body that no service takes."""
    words = b" ".join([SECRET.encode()] * (MEGABYTES * 1024 * 1024 // (len(SECRET) + 1)))
    return Asked(method, _filled(path, ID), JSON, b'{"messages": "' + words + b'"}')


def _filled(path: str, value: str) -> str:
    parts = [value if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts)


def _headers() -> Iterator[dict[str, str]]:
    names = ["authorization", "cookie", "x-api-key", "x-ratchet-trajectory", "x-ratchet-session", "x-ratchet-agent"]
    names += ["host", "origin", "traceparent", "x-forwarded-for", "accept", "user-agent", "referer", SECRET]
    yield from ({**JSON, name: SECRET} for name in names)
    yield {**JSON, "authorization": f"Bearer {SECRET}"}
    yield {**JSON, "origin": f"https://{SECRET}", "host": f"{SECRET}.example"}
    yield {**JSON, "transfer-encoding": SECRET}
    yield {**JSON, "content-length": SECRET}


def _bodies(valid: Sequence[Any]) -> Iterator[bytes]:
    yield f'{{"messages": "{SECRET}'.encode()
    yield f'"{SECRET}"'.encode()
    yield f'["{SECRET}"]'.encode()
    yield b'{"messages": "\xff' + SECRET.encode() + b'"}'
    yield f'{{"{SECRET}": '.encode() + b"[" * 5_000
    yield f'{{"{SECRET}": {"[" * 400}"{SECRET}"{"]" * 400}}}'.encode()
    yield f'{{"{SECRET}": 1{"0" * 400}, "a": "{SECRET}"}}'.encode()
    yield f'{{"a": "{SECRET}", "a": {2**70}}}'.encode()
    for document in valid:
        yield msgspec.json.encode(_with_secret(document))
        for place in places(document):
            for value in (SECRET, {SECRET: SECRET}, [SECRET], 10**18):
                yield msgspec.json.encode({**changed(document, place, "replace", value), "user": SECRET})


def _with_secret(document: Any) -> Any:
    """The document with the secret in every free text; a text without a space is one of a few choices."""
    if isinstance(document, dict):
        return {key: _with_secret(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_with_secret(value) for value in document]
    return f"{document} {SECRET}" if isinstance(document, str) and " " in document else document


def events(document: Any) -> Iterator[bytes]:
    """Bodies of a message: a valid one that holds the secret, and ones that are wrong because of it."""
    yield msgspec.json.encode(_with_secret(document))
    for number, place in enumerate(places(document)):
        value: Any = SECRET if number % 2 else {SECRET: [SECRET]}
        yield msgspec.json.encode(changed(document, place, "replace", value))
    yield msgspec.json.encode({**document, SECRET: SECRET})
    yield msgspec.json.encode(document)[:-20] + SECRET.encode()
    yield b'"\xff' + SECRET.encode() + b'"'


async def send(url: str, asked: Asked, timeout_s: float = 60.0) -> bytes:
    """The answer to one request on a connection of its own; empty where the client went away before it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        with suppress(ConnectionError):  # refused before all of it was sent
            writer.write(asked.raw(place.netloc))
            await writer.drain()
        if asked.kept is not None:
            return b""
        async with asyncio.timeout(timeout_s):
            with suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


class Echo:
    """An engine and a provider that echo the request, in every way in which a server can fail."""

    def __init__(self) -> None:
        self.answered = 0
        self._server: asyncio.Server | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head.lower())
            body = await reader.readexactly(int(length[1]) if length else 0)
            answers = answers_to(body.decode("utf-8", "replace"))
            writer.write(answers[self.answered % len(answers)])
            self.answered += 1
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve on a free port; yields the url."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        finally:
            self._server.close()


def answers_to(text: str) -> list[bytes]:
    """Every answer of the echo, in their order."""
    text = f"{text} {SECRET}"
    error = msgspec.json.encode({"error": {"message": text, "type": SECRET, "code": SECRET, "param": SECRET}})
    answers = [_answer(status, error) for status in (400, 401, 403, 404, 405, 408, 413, 422, 429, 500, 503)]
    message = {"role": "assistant", "content": text}
    call = {"id": SECRET, "type": "function", "function": {"name": SECRET, "arguments": f'{{"{SECRET}": '}}
    logprob = {"token": SECRET, "logprob": SECRET}
    choices: list[Any] = [
        {"message": message, "finish_reason": "stop"},
        {"message": message, "finish_reason": SECRET, "logprobs": {"content": [logprob]}, "token_ids": [SECRET]},
        {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"},
        {"message": {"role": SECRET, "content": {SECRET: [SECRET]}}, "finish_reason": {SECRET: SECRET}},
        {"message": SECRET},
        SECRET,
    ]
    for choice in choices:
        body = msgspec.json.encode({"choices": [choice], "usage": {"prompt_tokens": SECRET}})
        answers.append(_answer(200, body))
    answers += [_answer(200, text.encode()) for text in (text, f'"{SECRET}"', f'{{"choices": "{SECRET}"')]
    answers += [
        _answer(302, b"", f"location: http://{SECRET}/{SECRET}\r\n"),
        _answer(200, b'{"choices": [' + text.encode())[:-10],
        f"HTTP/1.1 {SECRET} {SECRET}\r\n\r\n".encode(),
        f"{SECRET}\r\n\r\n{SECRET}".encode(),
        f"HTTP/1.1 200 OK\r\ncontent-length: {SECRET}\r\n{SECRET}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{SECRET}\r\n".encode(),
        _answer(200, b'{"choices": "\xff' + SECRET.encode() + b'"}'),
        _answer(200, b"[" * 100_000),
        _answer(200, b'{"choices": [{"message": {"role": "assistant", "content": 1' + b"0" * 30 + b"}}]}"),
        f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 25\r\n\r\n{SECRET}".encode(),
        b"",
    ]
    return answers


def _answer(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} {SECRET}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
