"""Notices routes that another program has written, and sets them back: agents must get what the log of decisions says.

Only the leading deployer writes routes, each time after a decision, and what a route is then follows from the role's
rollout (`domain.serving`). A change by another program that has the right to write the bucket, or has taken it, is
noticed as soon as it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.bus.tasks import Lasting, end
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.serving import decided_route
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.contract import Alert, named_id
from ratchet.core.contract.state import PolicyStage, Route
from ratchet.core.errors import Conflict, NotFound, RatchetError, Unreadable
from ratchet.core.rules.arms import served, version_0

log = structlog.get_logger()

AGAIN_S = 1.0
"""Pause before a route is compared again whose rollout could not be read."""


class RouteGuard(Lasting):
    """A component for one term of leadership: follows the bucket of routes."""

    def __init__(
        self,
        routes: Bucket[msgspec.Raw],
        controller_of: Callable[[str], RolloutController | None],
        publish: Callable[[Alert], Awaitable[None]],
        now: Callable[[], datetime],
    ) -> None:
        """`controller_of`: what controls the role; None while nothing does."""
        super().__init__()
        self._routes = routes
        self._controller_of = controller_of
        self._publish = publish
        self._now = now
        self._late: dict[str, asyncio.Task[None]] = {}
        """By role: routes that are compared again and again, for their rollouts cannot be read now."""

    async def _work(self) -> None:
        try:
            async for changes in self._routes.watch(lambda key: "." not in key):
                for role, _ in changes:
                    if not await self._is_compared(role) and role not in self._late:
                        self._late[role] = asyncio.create_task(self._compare_again(role))
        finally:
            await end(*self._late.values())

    async def _compare_again(self, role: str) -> None:
        """Compare a route until it succeeds, beside the others."""
        try:
            while True:
                await asyncio.sleep(AGAIN_S)
                if await self._is_compared(role):
                    return
        finally:
            del self._late[role]

    async def _is_compared(self, role: str) -> bool:
        """Compare the route of a role with what was decided; False where that cannot be known now."""
        while (controller := self._controller_of(role)) is not None:
            try:
                await self._compare(controller)
                return True
            except Conflict:
                continue
            except RatchetError as error:
                log.warning("route not compared yet", role=role, reason=str(error))
                return False
        return True

    async def _compare(self, controller: RolloutController) -> None:
        """Set the role's route back where it is not what was decided. Raises an error of the tree."""
        context, store = controller.context, controller.store
        async with store.lock:
            rollout = await store.load()
            if store.lost is not None or (rollout is not None and rollout.outbox):
                return  # the next step makes the decision true, or ends what cannot be proven
            role, policies = context.role, context.policies
            blank = Route(role=role)
            try:
                route = await policies.route(role) or blank
            except Unreadable:
                decided = await _decided(policies, blank, rollout)
                await self._publish(self._alert(role, "one that cannot be read", decided))
                await policies.replace_route(role, decided)
            else:
                decided = await _decided(policies, route, rollout)
                if route == decided:
                    return
                await self._publish(self._alert(role, _named(route), decided))
                await policies.change_route(
                    role, lambda route: msgspec.structs.replace(decided, next_version=route.next_version)
                )
        log.error("route set back", role=role)

    def _alert(self, role: str, was: str, decided: Route) -> Alert:
        at = self._now()
        summary = (
            f"the route of {role} is not what was decided: another program wrote {was}. The deployer sets it back to"
            f" {_named(decided)}. Find out who has the key of a user that writes the bucket"
            " policies (docs/permissions.md), and exchange it: `ratchet broker rotate canary_deployer`."
        )
        key = f"route-set-back:{role}"
        return Alert(
            alert_id=named_id("alert", key, at.isoformat()),
            key=key,
            severity="critical",
            summary=summary,
            source="canary_deployer",
            role=role,
            at=at,
        )


async def _decided(policies: KvPolicies, route: Route, rollout: Rollout | None) -> Route:
    """The route as it was decided. Without a rollout stable is version 0, or a policy whose own entry says so."""
    if rollout is not None:
        return decided_route(route, rollout)
    stable = route.stable
    if stable is not None and stable != version_0(route.role):
        try:
            policy = await policies.version(route.role, stable.version)
        except (NotFound, Unreadable):
            stable = None
        else:
            stable = stable if policy.stage == PolicyStage.STABLE and stable == served(policy) else None
    return msgspec.structs.replace(route, stable=stable, previous=None, canary=None)


def _named(route: Route) -> str:
    stable = route.stable.name if route.stable else "no stable policy"
    return f"{stable} with the canary {route.canary.policy.name}" if route.canary else stable
