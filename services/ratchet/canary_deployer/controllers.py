"""One controller per role, for as long as this process leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.errors import BusUnavailable, NotFound, Unavailable
from ratchet.core.service.leadership import Lead, NotLeading

log = structlog.get_logger()

RESCAN_S = 1.0
"""Pause between attempts to read the roles while the broker is away."""


@dataclass(slots=True)
class Controllers:
    """Starts a controller for every role that is known when a term begins, and for every new one.

    `run` works for one term, and may be called again for the next: every record is read anew then.
    """

    build: Callable[[str], RolloutController]
    policies: KvPolicies
    rollouts: Bucket[Rollout]
    lead: Lead
    _controllers: dict[str, RolloutController] = field(default_factory=dict[str, RolloutController], init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], init=False)
    _leaving: set[str] = field(default_factory=set[str], init=False)
    """Roles that are being removed."""
    _running: bool = field(default=False, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Control the rollouts of all roles until stopped."""
        self._running = True
        try:
            for role in [*self._controllers, *await self._known_roles()]:
                self._begin(role)
            await self._stopping.wait()
            await asyncio.gather(*(controller.stop() for controller in self._controllers.values()))
            await asyncio.gather(*self._tasks.values())
        finally:
            self._running = False
            metrics.stop_showing()
            self._controllers.clear()
            self._tasks.clear()
            self._stopping.clear()

    async def stop(self) -> None:
        """Every controller saves its rollout and returns."""
        self._stopping.set()

    def on_registered(self, role: str) -> None:
        """A role has a new policy."""
        self._begin(role).wake()

    async def roles(self) -> list[str]:
        """Every role that has a policy."""
        return sorted({*self._controllers, *await self.policies.roles()})

    async def controller(self, role: str) -> RolloutController:
        """The controller of a role, for orders. Raises `NotFound`, or `NotLeading` with the leader's address."""
        _ = self.lead.term
        controller = self._controllers.get(role)
        if controller is not None:
            return controller
        if role in await self.policies.roles():
            raise NotLeading("this deployer has just begun to lead: try again in a few seconds")
        raise NotFound(f"no such role: {role}")

    async def current(self, role: str) -> Rollout | None:
        """The newest rollout of a role: a leader's own, else as the leader saved it. Raises `NotFound`."""
        controller = self._controllers.get(role)
        if controller is not None:
            try:
                await self.lead.confirm()
                return await controller.current()
            except BusUnavailable:
                return await controller.current()
            except NotLeading:
                pass
        entry = await self.rollouts.get(role)
        if entry is None and role not in await self.policies.roles():
            raise NotFound(f"no such role: {role}")
        return entry.value if entry else None

    @asynccontextmanager
    async def without(self, role: str) -> AsyncIterator[None]:
        """A block in which nothing controls a role. It has a controller again where the block fails."""
        controller, task = self._controllers.pop(role, None), self._tasks.pop(role, None)
        self._leaving.add(role)
        try:
            if controller is not None:
                await controller.stop()
            if task is not None:
                await task
            yield
        except BaseException:
            self._begin(role)
            raise
        finally:
            self._leaving.discard(role)

    def of_route(self, role: str) -> RolloutController | None:
        """What controls a role that has a route, from now on if nothing did; None while it is being removed."""
        return None if role in self._leaving else self._begin(role)

    def fault(self, role: str) -> str | None:
        """Why the role's rollout cannot go on, or what its engine does wrong meanwhile; None when nothing is wrong, or
        when another deployer leads."""
        controller = self._controllers.get(role)
        return controller.fault or controller.watch.fault if controller else None

    def late(self, role: str) -> str | None:
        """Why the outcomes of the role's rollout come late; None when they do not, or when another deployer leads."""
        controller = self._controllers.get(role)
        return controller.observer.late if controller else None

    def progress(self, role: str) -> str | None:
        """How far the role's gate has come that takes hours; None where none runs, or when another deployer leads."""
        controller = self._controllers.get(role)
        return controller.progress if controller else None

    async def check(self) -> str | None:
        """Readiness: why a rollout cannot go on, None when all can."""
        faults = [f"{role}: {controller.fault}" for role, controller in self._controllers.items() if controller.fault]
        return "; ".join(faults) or None

    def _begin(self, role: str) -> RolloutController:
        controller = self._controllers.get(role)
        if controller is None:
            controller = self._controllers[role] = self.build(role)
        if self._running and not self._stopping.is_set() and role not in self._tasks:
            self._tasks[role] = asyncio.create_task(controller.run())
        return controller

    async def _known_roles(self) -> list[str]:
        """Every role that has a policy, once the broker can be read; none after a stop."""
        while not self._stopping.is_set():
            try:
                return await self.policies.roles()
            except Unavailable as error:
                log.warning("waiting for the broker", reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(RESCAN_S):
                    await self._stopping.wait()
        return []
