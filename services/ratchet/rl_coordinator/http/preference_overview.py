"""Where every role stands with preferences: what is stored, what is new, and what learned from them last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ratchet.contract.http.status import DpoRoleOut, DpoStatusOut
from ratchet.contract.snapshot import PAIRS
from ratchet.contract.state import READY, Job
from ratchet.rl_coordinator.http.shown import brief
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.triggers.clickhouse_counts import Counts
from ratchet.rl_coordinator.triggers.domain import preferences_from, should_run_dpo
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for
from ratchet.rules.algorithms import dataset_format


class PreferenceOverview:
    """Puts the summary together when somebody asks."""

    def __init__(
        self,
        store: KvJobs,
        policies: KvPolicies,
        counts: Counts,
        counted: Callable[[], Mapping[str, int]],
        recipes: Mapping[str, Recipe],
    ) -> None:
        """`counted`: by role, how many preferences there ever were, as the trigger counts them."""
        self._store = store
        self._policies = policies
        self._counts = counts
        self._counted = counted
        self._recipes = recipes

    async def status(self, role: str | None) -> DpoStatusOut:
        """Every role that has preferences or learned from some; or the one that is asked for."""
        jobs = [job for job in self._store.all() if dataset_format(job.algorithm) == PAIRS]
        roles = [role] if role is not None else sorted({*self._counted(), *(job.role for job in jobs)})
        found = await asyncio.gather(*(self._role(each, jobs) for each in roles))
        return DpoStatusOut(roles=dict(zip(roles, found, strict=True)))

    async def _role(self, role: str, jobs: list[Job]) -> DpoRoleOut:
        pairs = await self._counts.preferences(role)
        counted, recipe = self._counted().get(role, 0), recipe_for(role, self._recipes)
        own = [job for job in jobs if job.role == role]
        fires = recipe is not None and should_run_dpo(
            role, jobs=self._store.all(), preferences=counted, threshold=recipe.threshold
        )
        return DpoRoleOut(
            pairs=pairs,
            total=sum(pairs.values()),
            since_last_dpo=max(0, counted - preferences_from(role, own)),
            threshold=recipe.threshold if recipe else None,
            would_fire=fires,
            last_job=brief(own[-1]) if own else None,
            newest_policy=await self._newest_policy(role),
        )

    async def _newest_policy(self, role: str) -> str | None:
        versions = (await self._policies.of(role)).versions.values()
        ready = [p for p in versions if p.status == READY and dataset_format(p.algorithm) == PAIRS]
        return max(ready, key=lambda policy: policy.version).name if ready else None
