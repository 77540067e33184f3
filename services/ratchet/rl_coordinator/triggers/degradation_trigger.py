"""Starts a training when the policy that serves a role has become worse than it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ratchet.core.contract.state import PolicyVersion
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.registry import KvPolicies
from ratchet.rl_coordinator.triggers.clickhouse_scores import Scores
from ratchet.rl_coordinator.triggers.domain import DEGRADATION, DEGRADED, Comparison, Firing, last_note
from ratchet.rl_coordinator.triggers.firing import Firer
from ratchet.rl_coordinator.triggers.recipes import Degradation, Recipe, recipe_for

EVERY = timedelta(seconds=60)
"""How often a role's rewards are compared: it is a query over all of a policy's trajectories."""
BASELINE = timedelta(days=90)
"""How far back a policy's earlier rewards count."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What was last seen of a role."""

    at: datetime
    policy: str
    comparison: Comparison


@dataclass(frozen=True)
class DegradationTrigger:
    """One tick compares the newest rewards of every role's stable policy with its earlier ones."""

    recipes: Mapping[str, Recipe]
    policies: KvPolicies
    scores: Scores
    jobs: Jobs
    firer: Firer
    now: Callable[[], datetime]
    _looked: dict[str, Looked] = field(default_factory=dict[str, Looked], init=False)

    def looked(self, role: str) -> Looked | None:
        """What this coordinator last saw of a role."""
        return self._looked.get(role)

    def rests_until(self, role: str) -> datetime | None:
        """When the role's cooldown ends; None when the trigger may fire."""
        recipe, last = recipe_for(role, self.recipes), last_note(DEGRADATION, role, self.jobs.store.jobs_of(role))
        if recipe is None or recipe.degradation is None or last is None:
            return None
        until = last[0].at + timedelta(seconds=recipe.degradation.cooldown_s)
        return until if until > self.now() else None

    async def tick(self) -> None:
        """Fire for every role whose stable policy became worse. Raises `Unavailable`."""
        watched = [role for role, recipe in self.recipes.items() if recipe.degradation is not None]
        roles = await self.policies.roles() if watched else []
        for role in roles:
            recipe, before = recipe_for(role, self.recipes), self._looked.get(role)
            rests = before is not None and self.now() - before.at < EVERY
            if recipe is not None and recipe.degradation is not None and not rests:
                stable = (await self.policies.policies_of(role)).stable
                if stable is not None:
                    await self._look(stable, recipe, recipe.degradation)

    async def _look(self, stable: PolicyVersion, recipe: Recipe, rule: Degradation) -> None:
        role, now = stable.role, self.now()
        since = now - timedelta(seconds=rule.window_s)
        comparison = await self.scores.compared(role, stable.version, begin=now - BASELINE, since=since)
        self._looked[role] = Looked(now, stable.name, comparison)
        problem = comparison.problem(rule.drop, rule.minimum)
        if problem is None or self.rests_until(role) is not None:
            return
        await self.firer.fire(role, Firing(DEGRADATION, DEGRADED, f"{stable.name}: {problem}"), recipe)
