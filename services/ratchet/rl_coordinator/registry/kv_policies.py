"""The registered policies of a role, as the deployer stores them."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import PolicyVersion, Route
from ratchet.core.errors import NotFound, Unreadable
from ratchet.rl_coordinator.registry.domain import Policies


@dataclass(frozen=True)
class KvPolicies:
    """Reads the bucket `policies`: `<role>` is a route, `<role>.<version>` a version."""

    routes: Bucket[Route]
    versions: Bucket[PolicyVersion]

    async def policies_of(self, role: str) -> Policies:
        """All policies of a role. Raises `Unreadable`: without one of them a lineage would have a hole."""
        route = await self.routes.get(role)
        versions: dict[int, PolicyVersion] = {}
        for entry in (await self.versions.below(role)).values():
            if isinstance(entry, Unreadable):
                raise entry
            versions[entry.value.version] = entry.value
        return Policies(route.value if route else None, versions)

    async def policies_with(self, role: str, version: int) -> Policies:
        """All policies of a role, `version` among them. Raises `NotFound` when it is not registered."""
        policies = await self.policies_of(role)
        if version not in policies.versions:
            raise NotFound(f"no such policy: {role}@{version}")
        return policies

    async def get_policy(self, role: str, version: int) -> PolicyVersion:
        """One policy; the others of its role are not read. Raises `NotFound`."""
        entry = await self.versions.get(f"{role}.{version}")
        if entry is None:
            raise NotFound(f"no such policy: {role}@{version}")
        return entry.value

    async def roles(self) -> list[str]:
        """Roles that have a route or a policy."""
        return sorted({key.partition(".")[0] for key in await self.routes.keys()})
