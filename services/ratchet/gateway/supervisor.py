"""The gateway as one process, or as several workers behind this one, which then answers no call itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ratchet.core.service.runtime import App
from ratchet.core.service.workers import Workers, held_port
from ratchet.gateway import metrics
from ratchet.gateway.app import build, stop_s
from ratchet.gateway.settings import Settings

MODULE = "ratchet.gateway.worker"
END_S = 2.0
"""How much longer than its workers the supervisor takes to stop."""


def build_gateway(settings: Settings) -> AbstractAsyncContextManager[App]:
    """The gateway, with as many workers as the settings say."""
    return build(settings) if settings.workers == 1 else build_supervisor(settings)


@asynccontextmanager
async def build_supervisor(settings: Settings) -> AsyncIterator[App]:
    """Several workers as one service."""
    with held_port(settings.shared.http_host, settings.port) as port:
        workers = Workers(MODULE, settings.workers, port, on_death=metrics.WORKER_DEATHS.inc, largest=metrics.LARGEST)
        yield App("gateway", [workers], drain_s=stop_s(settings) + END_S, others=workers)
