"""One driver per role, for as long as the service runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from ratchet.canary_deployer.driver import RoleDriver, Work
from ratchet.canary_deployer.keeper import Office
from ratchet.kernel.errors import NotFound, Unavailable

log = structlog.get_logger()

RESCAN_S = 1.0
"""Pause between attempts to read the roles while the broker is away."""


class Deployments:
    """Starts a driver for every role that is known at the start, and for every new one."""

    def __init__(self, office: Office, work: Work) -> None:
        self._office = office
        self._work = work
        self._drivers: dict[str, RoleDriver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Drive all roles until stopped."""
        self._running = True
        for role in [*self._drivers, *await self._known_roles()]:
            self._drive(role)
        await self._stopping.wait()
        await asyncio.gather(*(driver.stop() for driver in self._drivers.values()))
        await asyncio.gather(*self._tasks.values())

    async def stop(self) -> None:
        """Every driver saves where it is and returns."""
        self._stopping.set()

    def registered(self, role: str) -> None:
        """A role has a new policy."""
        self._drive(role)
        self._drivers[role].wake()

    def roles(self) -> list[str]:
        """Roles that have a driver."""
        return sorted(self._drivers)

    def driver(self, role: str) -> RoleDriver:
        """The driver of a role. Raises `NotFound`."""
        if role not in self._drivers:
            raise NotFound(f"no such role: {role}")
        return self._drivers[role]

    async def check(self) -> str | None:
        """Readiness: why a rollout cannot go on, None when all can."""
        faults = [f"{role}: {driver.fault}" for role, driver in self._drivers.items() if driver.fault]
        return "; ".join(faults) or None

    def _drive(self, role: str) -> None:
        driver = self._drivers.setdefault(role, RoleDriver(role, self._office, self._work))
        if self._running and not self._stopping.is_set() and role not in self._tasks:
            self._tasks[role] = asyncio.create_task(driver.run())

    async def _known_roles(self) -> list[str]:
        while not self._stopping.is_set():
            try:
                return await self._office.policies.roles()
            except Unavailable as error:
                log.warning("waiting for the broker", reason=str(error))
                await self._pause()
        return []

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RESCAN_S):
                await self._stopping.wait()
