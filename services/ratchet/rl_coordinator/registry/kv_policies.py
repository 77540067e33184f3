"""The registered policies of a role, as the deployer wrote them down."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.bus.kv import Bucket
from ratchet.contract.state import PolicyVersion, Route
from ratchet.errors import NotFound, Unreadable


@dataclass(frozen=True)
class Policies:
    """A role's versions, and where its traffic goes."""

    route: Route | None
    versions: dict[int, PolicyVersion]

    @property
    def stable(self) -> PolicyVersion | None:
        """The policy that serves the role."""
        if self.route is None or self.route.stable is None:
            return None
        return self.versions.get(self.route.stable.version)


class KvPolicies:
    """Reads the bucket `policies`: `<role>` is a route, `<role>.<version>` a version."""

    def __init__(self, routes: Bucket[Route], versions: Bucket[PolicyVersion]) -> None:
        self._routes = routes
        self._versions = versions

    async def of(self, role: str) -> Policies:
        """Everything about one role. Raises `Unreadable`: without one of them a lineage would have a hole."""
        route = await self._routes.get(role)
        versions: dict[int, PolicyVersion] = {}
        for entry in (await self._versions.below(role)).values():
            if isinstance(entry, Unreadable):
                raise entry
            versions[entry.value.version] = entry.value
        return Policies(route.value if route else None, versions)

    async def roles(self) -> list[str]:
        """Roles that have a route or a policy."""
        return sorted({key.partition(".")[0] for key in await self._routes.keys()})

    async def version(self, role: str, version: int) -> PolicyVersion:
        """One policy. Raises `NotFound`."""
        entry = await self._versions.get(f"{role}.{version}")
        if entry is None:
            raise NotFound(f"no such policy: {role}@{version}")
        return entry.value
