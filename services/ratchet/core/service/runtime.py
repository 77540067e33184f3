"""The life of a service: build, run, stop in order before one deadline."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog
import uvloop

from ratchet.bus.tasks import end
from ratchet.core.errors import ConfigError, RatchetError
from ratchet.core.service.asgi import AsgiApp
from ratchet.core.service.files import room_check
from ratchet.core.service.health import Check, Health, health_app
from ratchet.core.service.http import HttpServer
from ratchet.core.service.logs import configure_logs
from ratchet.core.service.same_site import Sites
from ratchet.core.service.settings import ServiceSettings, SharedSettings, read

log = structlog.get_logger()
SHUTDOWN_S = 10.0
"""One deadline for the whole ordered shutdown."""
COLLECTED = (20_000, 5, 5)
"""When the interpreter looks for garbage that refers to itself. Messages are none, and a batch of them has thousands of
objects: at 700, its own first number, this took a twentieth of what collector and reward computer take."""


S = TypeVar("S", bound=ServiceSettings)


class Component(Protocol):
    """Something that runs for as long as the service does."""

    async def run(self) -> None:
        """Work until stopped. Returning early or raising ends the service."""
        ...

    async def stop(self) -> None:
        """Ask `run` to finish what it has begun and return."""
        ...


@dataclass
class App:
    """A built service: components start in order and stop in reverse order."""

    name: str
    components: Sequence[Component]
    checks: Mapping[str, Check] = field(default_factory=dict[str, Check])
    notes: Mapping[str, Check] = field(default_factory=dict[str, Check])
    """Faults that /readyz reports and alerts name, but that do not keep the service from its work."""
    drain_s: float = 0.0
    """How much longer than `SHUTDOWN_S` a stop may take, so that open calls can end."""
    others: Mapping[str, AsgiApp] = field(default_factory=dict[str, AsgiApp])
    """What the health port serves besides its own, by path."""


class Periodic:
    """Runs `action` every `interval_s` seconds, the first time at once; an action never overlaps itself.

    An error of an action is logged, and the next tick tries again: it must not end the service.
    """

    def __init__(self, interval_s: float, action: Callable[[], Awaitable[None]], name: str = "periodic") -> None:
        self._interval_s = interval_s
        self._action = action
        self._name = name
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Tick until stopped."""
        while not self._stopping.is_set():
            try:
                await self._action()
            except RatchetError as error:
                log.warning("tick failed", task=self._name, reason=str(error))
            except Exception as error:
                log.error("tick failed unexpectedly", task=self._name, exc_info=error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()

    async def stop(self) -> None:
        """No further tick."""
        self._stopping.set()


def run(name: str, build: Callable[[S], AbstractAsyncContextManager[App]], kind: type[S]) -> None:
    """Run the service until SIGTERM or SIGINT. Exits 1, with one line, when it cannot start or a component fails.

    `kind`: the class of its settings, which are read here.
    """
    configure_logs(name, "info")
    gc.freeze()  # what is imported lives as long as the process
    gc.set_threshold(*COLLECTED)
    try:
        settings = read(kind)
        configure_logs(name, settings.shared.log_level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            healthy = runner.run(_serve(name, build(settings), settings.shared))
    except RatchetError as error:
        log.error("cannot run", reason=str(error))
        sys.exit(1)
    sys.exit(0 if healthy else 1)


async def _serve(name: str, build: AbstractAsyncContextManager[App], settings: SharedSettings) -> bool:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    health = Health(name)
    sites = Sites(settings.allowed_hosts)
    server = HttpServer(health_app(health), settings.http_host, settings.health_port, sites=sites)
    serving = asyncio.create_task(server.run())
    entering = asyncio.create_task(build.__aenter__())
    asked = asyncio.create_task(stopping.wait())
    asked.add_done_callback(lambda _: health.stop())
    try:
        await asyncio.wait({entering, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not entering.done():
            await end(entering)
            if not entering.cancelled() and entering.exception() is None:
                await build.__aexit__(None, None, None)
            return True
        app = entering.result()
        try:
            health.checks = app.checks
            health.notes = {**app.notes, "disk": room_check(settings.data_dir)}
            health.others = app.others
            health.starting = None
            log.info("running", health_port=server.port)
            return await supervise(app, stopping, SHUTDOWN_S + app.drain_s)
        finally:
            health.stop()
            await build.__aexit__(None, None, None)
    finally:
        asked.cancel()
        await server.stop()
        await serving


async def supervise(app: App, stopping: asyncio.Event, shutdown_s: float) -> bool:
    """Run the components until a signal, or until one of them ends. Returns whether it was a signal.

    Raises the `ConfigError` that a component ended with.
    """
    tasks = [asyncio.create_task(component.run()) for component in app.components]
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({asked, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    healthy = stopping.is_set()
    asked.cancel()
    for component, task in zip(app.components, tasks, strict=True):
        if task.done() and not healthy and not isinstance(task.exception(), ConfigError):
            log.error("component ended", component=type(component).__name__, exc_info=task.exception())
    # Last started, first stopped; one deadline for all of them together.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + shutdown_s
    for component, task in zip(reversed(app.components), reversed(tasks), strict=True):
        await component.stop()
        await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not task.done():
            log.warning("did not stop in time", component=type(component).__name__)
            await end(task)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for component, result in zip(app.components, results, strict=True):
        if isinstance(result, ConfigError):
            raise result
        if isinstance(result, Exception):
            log.error("component failed", component=type(component).__name__, exc_info=result)
    log.info("stopped")
    return healthy
