"""Bucket `policies`: `<role>` is a route, `<role>.<version>` a registered policy. This service is its only writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter
from typing import TypeVar

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.domain.announcements import UNKNOWN
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import Conflict, NotFound, Unreadable
from ratchet.core.service.leadership import Lead

log = structlog.get_logger()

V = TypeVar("V", Route, PolicyVersion)
Known = Callable[[Sequence[PolicyVersion]], Awaitable[PolicyVersion | None]]
"""The one of a role's policies, oldest first, that a new one would repeat; None where it would repeat none."""
Build = Callable[[int], Awaitable[PolicyVersion]]
"""The policy of a version. It may be asked for several, of which one is registered."""


class KvPolicies:
    """Routes and policies, changed by compare-and-set only, and by the leader only."""

    def __init__(self, routes: Bucket[Route], versions: Bucket[PolicyVersion], lead: Lead) -> None:
        self._routes = routes
        self._versions = versions
        self._lead = lead

    async def roles(self) -> list[str]:
        """Every role that has a route or a policy."""
        return sorted({key.partition(".")[0] for key in await self._routes.keys()})

    async def route(self, role: str) -> Route | None:
        """Where a role's traffic goes."""
        entry = await self._routes.get(role)
        return entry.value if entry else None

    async def change_route(self, role: str, change: Callable[[Route], Route]) -> Route:
        """Replace the route by `change(route)`; one write, none when nothing changes."""
        return await self._change(self._routes, role, lambda route: change(route or Route(role=role)))

    async def replace_route(self, role: str, route: Route) -> None:
        """Write the route over one that cannot be read."""
        await self._lead.confirm()
        await self._routes.put(role, route)

    async def version(self, role: str, version: int) -> PolicyVersion:
        """One policy. Raises `NotFound`."""
        entry = await self._versions.get(f"{role}.{version}")
        if entry is None:
            raise NotFound(f"no such policy: {role}@{version}")
        return entry.value

    async def version_or_stub(self, role: str, policy: ServedPolicy, known_since: datetime) -> PolicyVersion:
        """A policy that a rollout names; where its entry is gone or damaged, the little that the rollout knows of it.

        A canary must be able to end, and a promotion to be undone, whatever became of the entry.
        """
        try:
            return await self.version(role, policy.version)
        except (NotFound, Unreadable) as error:
            log.error("policy known by its rollout alone", policy=policy.name, reason=str(error))
            return PolicyVersion(
                role=role,
                version=policy.version,
                name=policy.name,
                digest=policy.digest,
                uri=UNKNOWN,
                kind=UNKNOWN,
                base_model=UNKNOWN,
                created_at=known_since,
                stage=PolicyStage(UNKNOWN),
            )

    async def versions(self, role: str) -> list[PolicyVersion]:
        """All policies of a role that can be read, oldest first."""
        return [policy for _, policy in await self._numbered(role) if policy is not None]

    async def change_version(self, role: str, version: int, change: Callable[[PolicyVersion], PolicyVersion]) -> None:
        """Replace a policy by `change(policy)`. Raises `NotFound`."""
        missing = await self.version(role, version)
        await self._change(self._versions, f"{role}.{version}", lambda policy: change(policy or missing))

    async def register(self, role: str, known: Known, build: Build) -> tuple[PolicyVersion, bool]:
        """A policy as the next version, and whether it is new: one that is known already is returned.

        The policy is written before the counter: a crash in between leaves a policy that the next attempt returns.
        """
        version, numbered = await self._next(role)
        same = await known([policy for _, policy in numbered if policy is not None])
        if same is not None:
            await self._count_version(role, same.version)
            return same, False
        policy = await build(version)
        if not await self.create(policy):  # another one has taken the version since: it may be the same
            return await self.register(role, known, build)
        await self._count_version(role, policy.version)
        return policy, True

    async def next_version(self, role: str) -> int:
        """The version that the next policy of a role gets."""
        return (await self._next(role))[0]

    async def _next(self, role: str) -> tuple[int, list[tuple[int, PolicyVersion | None]]]:
        """The next version of a role, and the policies from which it follows."""
        route, numbered = await self.route(role), await self._numbered(role)
        return max([route.next_version if route else 1, *(number + 1 for number, _ in numbered)]), numbered

    async def create(self, policy: PolicyVersion) -> bool:
        """Write a policy; False, and nothing is written, where its version is taken."""
        await self._lead.confirm()
        try:
            await self._versions.create(f"{policy.role}.{policy.version}", policy)
        except Conflict:
            return False
        return True

    async def remove(self, role: str) -> None:
        """Delete a role: its policies, then the route, by which the role is known until all else is gone."""
        await self._lead.confirm()
        for key in [*await self._versions.below(role), role]:
            await self._routes.delete(key)

    async def _numbered(self, role: str) -> list[tuple[int, PolicyVersion | None]]:
        """All policies of a role with their versions, oldest first; None, with a log, for one that cannot be read.

        One damaged entry must not keep the role from its next policy.
        """
        known: list[tuple[int, PolicyVersion | None]] = []
        for key, entry in (await self._versions.below(role)).items():
            number, damage = key.removeprefix(f"{role}."), str(entry) if isinstance(entry, Unreadable) else None
            if damage or not number.isdecimal():
                log.warning("policy left out", key=key, reason=damage or "its key names no version")
            if number.isdecimal():
                known.append((int(number), None if isinstance(entry, Unreadable) else entry.value))
        return sorted(known, key=itemgetter(0))

    async def _count_version(self, role: str, version: int) -> None:
        await self.change_route(
            role, lambda route: msgspec.structs.replace(route, next_version=max(route.next_version, version + 1))
        )

    async def _change(self, bucket: Bucket[V], key: str, change: Callable[[V | None], V]) -> V:
        """Read, confirm with the broker that this process still leads, write; again when another writer was faster.

        Raises `NotLeading`: a deployer that was replaced while it was frozen must not write what it once decided.
        """
        while True:
            entry = await bucket.get(key)
            value = change(entry.value if entry else None)
            if entry is not None and value == entry.value:
                return value
            await self._lead.confirm()
            with suppress(Conflict):
                if entry is None:
                    await bucket.create(key, value)
                else:
                    await bucket.update(key, value, entry.revision)
                return value
