"""A running console, and a client that reads its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from ratchet.console.app import build
from ratchet.console.settings import Settings
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from tests.support.running import http_client, running_app

NOWHERE = "http://127.0.0.1:9"
"""The address of a service that is away."""


@asynccontextmanager
async def consoling(shared: SharedSettings, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A console for the length of a block, and a client of it; services whose address is not given are away."""
    for name in ("coordinator_url", "deployer_url", "gateway_url"):
        settings.setdefault(name, NOWHERE)
    async with running_app(build(Settings(shared=shared, port=0, **settings))) as app:
        (server,) = (part for part in app.components if isinstance(part, HttpServer))
        url = f"http://127.0.0.1:{server.port}"
        async with http_client(base_url=url, trust_env=False) as http:
            yield http


class News:
    """What a page that listens is sent: the newest loop, and all hints."""

    def __init__(self) -> None:
        self.loops: list[Any] = []
        self.hints: list[Any] = []
        self.over = False

    async def read(self, answer: httpx.Response) -> None:
        """Until the stream ends."""
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                value = msgspec.json.decode(line.removeprefix("data: "))
                (self.loops if name == "loop" else self.hints).append(value)
        self.over = True


@asynccontextmanager
async def listening(http: httpx.AsyncClient, **headers: str) -> AsyncIterator[News]:
    """A page that listens for the length of a block."""
    news = News()
    async with http.stream("GET", "/v1/events", headers=headers) as answer:
        answer.raise_for_status()
        reading = asyncio.create_task(news.read(answer))
        try:
            yield news
        finally:
            reading.cancel()
            await asyncio.wait({reading})
