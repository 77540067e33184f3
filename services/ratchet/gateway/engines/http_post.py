"""One JSON request to an engine: time-outs, retries of what never arrived, and failures told apart."""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ratchet.gateway.engines.base import EngineFailed, Reply
from ratchet.service.problems import HttpError

CONNECT_TRIES = 3
"""A refused connection was never a call, so it is tried again; anything later is not."""
CONNECT_PAUSE_S = 0.1
"""Before the second try; doubled before each one after it."""
KEEP_ALIVE_S = 4.0
"""Below the five seconds after which uvicorn and vLLM close an idle connection: theirs must not be the first word."""

_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of this process and its machine: no engine, and so no arm, has failed."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for bytes that are no JSON, no text, or nested without end."""
LARGE = 1024 * 1024
"""Bytes of a request that is sent in pieces."""
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, unpacked: a long one with the log-probabilities of every token has a few."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is, and how long it may take."""

    url: str
    """In front of every path."""
    headers: Mapping[str, str]
    connect_s: float
    total_s: float


class HttpPost:
    """Sends JSON to one engine."""

    def __init__(self, session: aiohttp.ClientSession, name: str, address: Address) -> None:
        self._session = session
        self._name = name
        self._url = address.url.rstrip("/")
        self._headers = {"content-type": "application/json", **address.headers}
        self._timeout = aiohttp.ClientTimeout(total=address.total_s, sock_connect=address.connect_s)

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        """What the engine answers, whatever its status. Raises `EngineFailed` 502, or 504 when it took too long."""
        sealed = msgspec.json.encode(body)
        for attempt in range(CONNECT_TRIES):
            try:
                return await self._send(path, sealed)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in _OUR_LIMITS:
                    raise HttpError(503, "the gateway has no connection left", code="overloaded") from error
                if attempt + 1 == CONNECT_TRIES:
                    message = f"{self._name} is not reachable"
                    raise EngineFailed(502, message, code="engine_unavailable", unreachable=True) from error
                await asyncio.sleep(CONNECT_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _send(self, path: str, body: bytes) -> Reply:
        try:
            data, timeout = in_pieces(body), self._timeout
            async with self._session.post(
                self._url + path, data=data, headers=self._headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if 300 <= answer.status < 400:
                    raise EngineFailed(502, f"{self._name} points elsewhere", code="engine_invalid")
                body = await bounded(answer)
                return Reply(answer.status, _decoded(answer.status, body), body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise
        except TimeoutError as error:
            raise EngineFailed(504, f"{self._name} took too long", code="engine_timeout") from error
        except aiohttp.ClientError as error:
            raise EngineFailed(502, f"{self._name} broke off: {error}", code="engine_unavailable") from error
        except UNREADABLE as error:
            raise EngineFailed(502, f"{self._name} did not answer in JSON", code="engine_invalid") from error


def in_pieces(body: bytes) -> bytes | io.BytesIO:
    """A body as aiohttp takes it: a large one in pieces, between which others get their turn."""
    return io.BytesIO(body) if len(body) > LARGE else body


async def bounded(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises `ClientPayloadError` when it is larger than any answer."""
    chunks, size = list[bytes](), 0
    async for chunk in answer.content.iter_any():
        size += len(chunk)
        if size > LARGEST_ANSWER:
            answer.close()
            raise aiohttp.ClientPayloadError(f"more than {LARGEST_ANSWER} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def open_session() -> aiohttp.ClientSession:
    """A session without a limit of its own on connections: the engine's queue decides."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S), auto_decompress=True
    )


def _decoded(status: int, body: bytes) -> Any:
    """The JSON of an answer; an error page of a proxy is an answer without JSON."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        if status == 200:
            raise
        return None
