"""A proxy that only passes calls on, by the gateway's own server and client: the floor of what a gateway costs.

Run: `python -m tests.bench.empty_proxy PORT URL`, the URL of an upstream down to `/v1`.
"""

from __future__ import annotations

import sys
from contextlib import aclosing

import uvloop

from ratchet.core.service.asgi import Receive, Scope, Send
from ratchet.core.service.http import HttpServer
from ratchet.gateway.engines.http_pool import HttpPool

WAIT_S = 60.0
CHATS = "/v1/chat/completions"


class EmptyProxy:
    """Answers every call as the upstream does, piece by piece, and everything else with nothing."""

    def __init__(self, url: str) -> None:
        self._pool = HttpPool(url, {"content-type": "application/json"}, connect_s=WAIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["path"] != CHATS:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event["body"], event["more_body"]
        async with aclosing(await self._pool.post(CHATS.removeprefix("/v1"), body, first_byte_s=WAIT_S)) as reply:
            kept = [
                (name, reply.headers[name]) for name in (b"content-type", b"content-length") if name in reply.headers
            ]
            await send({"type": "http.response.start", "status": reply.status, "headers": kept})
            async for piece in reply.chunks(WAIT_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvloop.run(HttpServer(EmptyProxy(sys.argv[2]), "127.0.0.1", int(sys.argv[1])).run())
