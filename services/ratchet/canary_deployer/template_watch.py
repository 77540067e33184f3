"""Asks again whether engines' chat templates show the policies that serve (stable) the tools of their agents.

The gate `takes_tools` sees a candidate. A chat template is the engine's: an operator may start it with another one
later, and the gateway refuses calls by what the registry has. What every replica that answers shows in two sweeps one
after the other counts: an engine that has just been started may not stay so. Where replicas differ or fail, nothing
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from ratchet.canary_deployer.domain.announcements import Announcer, registration_cause
from ratchet.canary_deployer.leadership import Lead
from ratchet.canary_deployer.reconciler import Publish
from ratchet.canary_deployer.replicas import Engines, present_replicas
from ratchet.canary_deployer.tool_templates import shows_tools
from ratchet.core.contract.state import PolicyVersion, Route
from ratchet.core.errors import NotFound, Rejected, Unavailable, Unreadable

log = structlog.get_logger()

SWEEP_S = 60.0
"""How often stable policies are asked: two sweeps agree before anything changes, which makes two minutes."""


class Registry(Protocol):
    """Routes and policies."""

    async def roles(self) -> list[str]: ...

    async def route(self, role: str) -> Route | None: ...

    async def version(self, role: str, version: int) -> PolicyVersion: ...

    async def change_version(
        self, role: str, version: int, change: Callable[[PolicyVersion], PolicyVersion]
    ) -> None: ...


@dataclass(kw_only=True)
class TemplateWatch:
    """Keeps `takes_tools` of stable policies true."""

    engines: Engines
    policies: Registry
    publish: Publish
    lead: Lead
    announcer: Announcer
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._seen: set[tuple[str, bool]] = set()
        """Policies of which the last sweep saw something else than the registry has, and what it saw."""

    async def sweep(self) -> None:
        """To be called every `SWEEP_S`. Raises `Unavailable` where routes cannot be read, or another process leads."""
        before, self._seen = self._seen, set()
        for role in await self.policies.roles():
            route = await self.policies.route(role)
            if route is None or route.stable is None:
                continue
            try:
                policy = await self.policies.version(role, route.stable.version)
                shown = await self._shown(policy)
            except (Unavailable, Rejected, NotFound, Unreadable) as error:
                log.info("chat template not checked", role=role, reason=type(error).__name__)
                continue
            if shown is None or shown is policy.takes_tools:
                continue
            if (policy.name, shown) in before:
                await self._note(policy, shown)
            else:
                self._seen.add((policy.name, shown))

    async def _shown(self, policy: PolicyVersion) -> bool | None:
        """What all replicas show that answer; None where they differ, or none of them gives token ids."""
        present, _ = await present_replicas(self.engines, policy.role)
        shown = await asyncio.gather(*(shows_tools(replica, policy.name) for replica in present))
        known = {one for one in shown if one is not None}
        if len(known) > 1:
            names = [replica.name for replica, one in zip(present, shown, strict=True) if one is False]
            log.warning("chat templates of replicas differ", policy=policy.name, without_tools=names)
        return known.pop() if len(known) == 1 else None

    async def _note(self, policy: PolicyVersion, shown: bool) -> None:
        """Announced first: a crash repeats it. That tools are shown is news only where calls were refused before."""
        await self.lead.confirm()
        if not shown or policy.takes_tools is False:
            alert = self.announcer.tools_of_stable(policy, shown, self.now())
            await self.publish([alert], cause=registration_cause(policy))
        await self.policies.change_version(
            policy.role, policy.version, lambda known: msgspec.structs.replace(known, takes_tools=shown)
        )
        log.info("chat template changed", policy=policy.name, takes_tools=shown)
