"""The engine behind the gateway, over vLLM's HTTP API."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ratchet.kernel.asgi import HttpError

CONNECT_TRIES = 3
"""A refused connection was never a call, so it is tried again; anything later is not."""
CONNECT_PAUSE_S = 0.1
KEEP_ALIVE_S = 4.0
"""Below the five seconds after which uvicorn and vLLM close an idle connection: theirs must not be the first word."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and JSON of an engine's answer. `Any`: it is JSON from another process."""

    status: int
    body: Any

    @property
    def is_unknown_model(self) -> bool:
        """The engine runs but does not hold this policy."""
        return self.status == 404


class HttpEngine:
    """Chat completions, and loading a policy that the engine lost in a restart."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    async def chat(self, body: dict[str, Any]) -> Reply:
        """One completion. Raises `HttpError` 503 when the engine is away, 504 when it takes too long."""
        return await self._post("/v1/chat/completions", body)

    async def load(self, name: str, uri: str) -> Reply:
        """Make a policy resident under its immutable name."""
        return await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": uri})

    async def _post(self, path: str, body: dict[str, Any]) -> Reply:
        sealed = msgspec.json.encode(body)
        for attempt in range(CONNECT_TRIES):
            try:
                return await self._send(path, sealed)
            except aiohttp.ClientConnectorError as error:
                if attempt + 1 == CONNECT_TRIES:
                    raise HttpError(503, "the engine is not reachable", code="engine_unavailable") from error
                await asyncio.sleep(CONNECT_PAUSE_S)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _send(self, path: str, body: bytes) -> Reply:
        try:
            async with self._session.post(
                self._url + path, data=body, headers={"content-type": "application/json"}
            ) as answer:
                return Reply(answer.status, msgspec.json.decode(await answer.read()))
        except TimeoutError as error:
            raise HttpError(504, "the engine took too long", code="engine_timeout") from error
        except aiohttp.ClientConnectorError:
            raise
        except aiohttp.ClientError as error:
            raise HttpError(503, f"the engine broke off: {error}", code="engine_unavailable") from error
        except msgspec.DecodeError as error:
            raise HttpError(502, "the engine did not answer in JSON", code="engine_invalid") from error


def open_session(timeout_s: float) -> aiohttp.ClientSession:
    """A session without a limit of its own on connections: the engine's queue decides."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s, connect=2.0),
        auto_decompress=False,
    )
