"""One JSON request to an engine: time-outs, retries of refused connections, and a failure for each cause."""

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
"""A refused connection was never a call, so the gateway tries again; it repeats nothing that may have arrived."""
CONNECT_PAUSE_S = 0.1
"""Before the second try; doubled before each later one."""
KEEP_ALIVE_S = 4.0
"""Below the five seconds after which uvicorn and vLLM close an idle connection: ours must close it first."""
LARGE = 1024 * 1024
"""A larger request goes out in pieces."""
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, unpacked: a long one with the log-probabilities of every token has a few."""

_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of this process and its machine: no engine, and so no arm, has failed."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The decoder raises these for bytes that are not JSON, not text, or nested too deep."""


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
        self._total_s = address.total_s
        self._timeout = aiohttp.ClientTimeout(total=address.total_s, sock_connect=address.connect_s)

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Reply:
        """The engine's reply, whatever its status. Raises `EngineFailed` 502, or 504 when the engine took too long."""
        encoded = msgspec.json.encode(body)
        for attempt in range(CONNECT_TRIES):
            try:
                return await self._send(path, encoded)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in _OUR_LIMITS:
                    message = f"the gateway has no connection to {self._name} left; try again in a moment"
                    raise HttpError(503, message, code="overloaded") from error
                if attempt + 1 == CONNECT_TRIES:
                    message = f"{self._name} is not reachable: {CONNECT_TRIES} connections failed; try again later"
                    raise EngineFailed(502, message, code="engine_unavailable", unreachable=True) from error
                await asyncio.sleep(CONNECT_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _send(self, path: str, body: bytes) -> Reply:
        # aiohttp sends a large body in pieces, between which it serves others, only from a file.
        data = io.BytesIO(body) if len(body) > LARGE else body
        try:
            async with self._session.post(
                self._url + path, data=data, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if 300 <= answer.status < 400:
                    message = (
                        f"{self._name} answered with a redirect, which the gateway does not follow: correct its URL"
                    )
                    raise EngineFailed(502, message, code="engine_invalid")
                raw = await _read_bounded(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise
        except TimeoutError as error:
            message = f"{self._name} took too long: no answer within {self._total_s:g} s; ask for fewer tokens"
            raise EngineFailed(504, message, code="engine_timeout") from error
        except aiohttp.ClientError as error:
            message = f"{self._name} broke off its answer: {error}; try again"
            raise EngineFailed(502, message, code="engine_unavailable") from error
        try:
            return Reply(answer.status, msgspec.json.decode(raw), raw)
        except _UNREADABLE as error:
            if answer.status != 200:  # an error page of a proxy: its status is the answer
                return Reply(answer.status, None, raw)
            message = f"{self._name} did not answer in JSON: its URL or the server behind it is wrong"
            raise EngineFailed(502, message, code="engine_invalid") from error


async def _read_bounded(answer: aiohttp.ClientResponse) -> bytes:
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
