"""Removes a role that nothing depends on, such as one whose name was mistyped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.controllers import Controllers
from ratchet.canary_deployer.domain.registry import why_kept
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.contract.http.rollouts import RolePoliciesOut
from ratchet.core.errors import Conflict, NotFound
from ratchet.core.service.leadership import Lead

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class RoleRemoval:
    """Only the leader removes roles. A crash in between leaves a role that is removed by asking again."""

    policies: KvPolicies
    controllers: Controllers
    records: Sequence[Bucket[Any]]
    """Buckets with what rollouts leave of a role, under its name and below. `Any`: of several kinds."""
    started_roles: Callable[[], Awaitable[Mapping[str, int]]]
    """How many trajectories have started in each role within a week. Raises `Unavailable`."""
    lead: Lead

    async def remove(self, role: str, actor: str, reason: str, *, dry_run: bool) -> RolePoliciesOut:
        """Remove a role; returns what it had. Its decisions stay in the log, its bundles leave when they are swept.

        Raises `NotFound`, and `Conflict` for a role with traffic, a rollout, or a policy that serves or was trained.
        """
        _ = self.lead.term
        route, versions = await self.policies.route(role), await self.policies.versions(role)
        if route is None and not versions:
            raise NotFound(f"no such role: {role}")
        rollout, started = await self.controllers.current(role), await self.started_roles()
        if why := why_kept(route, versions, rollout, started.get(role, 0)):
            raise Conflict(f"{role} stays: {why}")
        if not dry_run:
            async with self.controllers.without(role):
                for bucket in self.records:
                    for key in [*await bucket.keys(role), role]:
                        await bucket.delete(key)
                await self.policies.remove(role)
            log.info("role removed", role=role, actor=actor, reason=reason)
        return RolePoliciesOut(role=role, route=route, policies=versions)
