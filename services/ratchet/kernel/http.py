"""An HTTP server as a component: uvicorn in the service's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ratchet.kernel.errors import ConfigError


class _Server(uvicorn.Server):
    """Signals belong to the runtime, not to the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` on `host:port`. The port is bound at once: a taken one raises `ConfigError`."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,  # its loggers write as all others do: see `logs`
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=3,
            )
        )

    async def run(self) -> None:
        """Serve until stopped."""
        await self._server.serve(sockets=[self._socket])

    async def stop(self) -> None:
        """Take no new connections and finish the open requests."""
        self._server.should_exit = True
        await asyncio.sleep(0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
