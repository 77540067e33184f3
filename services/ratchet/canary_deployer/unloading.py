"""Frees the engines of policies that no route names any more.

Each sweep compares what the replicas hold with what routes and the registry say, and remembers nothing that a crash
could lose: a new leader begins to wait again. An unloaded policy that is asked for by name all the same is found again
by its name, so a sweep can never make one unreachable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from ratchet.canary_deployer.domain.registry import engine_name
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.replicas import Engines
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.rules.arms import VARIANTS, newest_by

log = structlog.get_logger()

SWEEP_S = 60.0
AFTER_S = 3600.0
"""No route has named a policy for so long, in the present deployer's term: an operator may still go back to it."""
ENDED = frozenset({PolicyStage.REFUSED, PolicyStage.ROLLED_BACK, PolicyStage.SUPERSEDED, PolicyStage.ARCHIVED})
"""Stages of policies that get no new trajectories."""


def unneeded(route: Route | None, versions: Iterable[PolicyVersion]) -> set[str]:
    """The names that a role's ended policies have in engines, and that neither its route, nor the name of a variant,
    nor a policy that may serve leads to: a bundle's name there is that of its adapter or model."""
    known = list(versions)
    named = [route.stable, route.previous, route.canary.policy if route.canary else None] if route else []
    kept = {policy.version for policy in named if policy}
    kept |= {newest.version for algorithm in VARIANTS if (newest := newest_by(algorithm, known))}
    ended = [policy for policy in known if policy.stage in ENDED and policy.version not in kept]
    needed = {engine_name(policy) for policy in known if policy.version in kept or policy.stage not in ENDED}
    return {engine_name(policy) for policy in ended} - needed


@dataclass(slots=True)
class Unloader:
    """Unloads a policy once every sweep of the last `after_s` seconds saw it held and not needed."""

    engines: Engines
    policies: KvPolicies
    after_s: float = AFTER_S
    monotonic: Callable[[], float] = time.monotonic
    _seen: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float], init=False)
    """By replica and policy: when it was first seen held and not needed."""

    async def sweep(self) -> None:
        """To be called every `SWEEP_S`. Raises `Unavailable` where routes cannot be read; nothing is unloaded then."""
        names: set[str] = set()
        for role in await self.policies.roles():
            names |= unneeded(await self.policies.route(role), await self.policies.versions(role))
        seen: dict[tuple[str, str], float] = {}
        for replica in self.engines.everywhere():
            try:
                now = self.monotonic()
                for name in names.intersection(await replica.models()):
                    since = seen[replica.name, name] = self._seen.get((replica.name, name), now)
                    if now - since >= self.after_s:
                        await replica.unload(name)
                        del seen[replica.name, name]
                        log.info("policy unloaded", replica=replica.name, policy=name)
            except (Unavailable, Rejected) as error:
                log.info("policies not unloaded", replica=replica.name, reason=type(error).__name__)
        self._seen = seen
