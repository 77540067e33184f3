"""One controller per role, for as long as this process leads."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from ratchet.canary_deployer.controller import RolloutController, Work
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.leadership import NotLeading
from ratchet.canary_deployer.rollout_store import Office
from ratchet.errors import BusUnavailable, NotFound, Unavailable

log = structlog.get_logger()

RESCAN_S = 1.0
"""Pause between attempts to read the roles while the broker is away."""


class Deployments:
    """Starts a controller for every role that is known when a term begins, and for every new one.

    `run` works for one term, and may be called again for the next: every record is read anew then.
    """

    def __init__(self, office: Office, work: Work) -> None:
        self._office = office
        self._work = work
        self._controllers: dict[str, RolloutController] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Drive all roles until stopped."""
        self._running = True
        try:
            for role in [*self._controllers, *await self._known_roles()]:
                self._drive(role)
            await self._stopping.wait()
            await asyncio.gather(*(controller.stop() for controller in self._controllers.values()))
            await asyncio.gather(*self._tasks.values())
        finally:
            self._running = False
            self._controllers.clear()
            self._tasks.clear()
            self._stopping.clear()

    async def stop(self) -> None:
        """Every controller saves where it is and returns."""
        self._stopping.set()

    def registered(self, role: str) -> None:
        """A role has a new policy."""
        self._drive(role)
        self._controllers[role].wake()

    async def roles(self) -> list[str]:
        """Every role that has a policy."""
        return sorted({*self._controllers, *await self._office.policies.roles()})

    async def controller(self, role: str) -> RolloutController:
        """The controller of a role, for orders. Raises `NotFound`, or `NotLeading` with the leader's address."""
        _ = self._office.lead.term
        controller = self._controllers.get(role)
        if controller is not None:
            return controller
        if role in await self._office.policies.roles():
            raise NotLeading("this deployer has just begun to lead: try again in a few seconds")
        raise NotFound(f"no such role: {role}")

    async def current(self, role: str) -> Rollout | None:
        """The newest rollout of a role: a leader's own, else as the leader saved it. Raises `NotFound`."""
        controller = self._controllers.get(role)
        if controller is not None:
            try:
                await self._office.lead.confirm()
                return await controller.current()
            except BusUnavailable:
                return await controller.current()
            except NotLeading:
                pass
        entry = await self._office.rollouts.get(role)
        if entry is None and role not in await self._office.policies.roles():
            raise NotFound(f"no such role: {role}")
        return entry.value if entry else None

    def fault(self, role: str) -> str | None:
        """Why the role's rollout cannot go on; None when it can, or when another deployer leads."""
        controller = self._controllers.get(role)
        return controller.fault if controller else None

    async def check(self) -> str | None:
        """Readiness: why a rollout cannot go on, None when all can."""
        faults = [f"{role}: {controller.fault}" for role, controller in self._controllers.items() if controller.fault]
        return "; ".join(faults) or None

    def _drive(self, role: str) -> None:
        controller = self._controllers.setdefault(role, RolloutController(role, self._office, self._work))
        if self._running and not self._stopping.is_set() and role not in self._tasks:
            self._tasks[role] = asyncio.create_task(controller.run())

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
