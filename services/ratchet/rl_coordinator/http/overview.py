"""The summary of training: jobs, slots, and where every role stands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

from ratchet.contract.http.status import RoleOut, SlotsOut, StatusOut, TrainingStatusOut
from ratchet.contract.state import Job, JobState
from ratchet.rl_coordinator.http.shown import brief
from ratchet.rl_coordinator.jobs.domain.jobs import ACTIVE, TERMINAL
from ratchet.rl_coordinator.jobs.domain.schedule import in_order, slots_used
from ratchet.rl_coordinator.jobs.handlers import House
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.triggers.domain import counted_from
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for

WAITING = 100
"""Longest list of waiting jobs."""


class Overview:
    """Puts the summary together when somebody asks."""

    def __init__(
        self,
        store: KvJobs,
        policies: KvPolicies,
        house: House,
        counts: Callable[[], Mapping[str, int]],
        recipes: Mapping[str, Recipe],
    ) -> None:
        self._store = store
        self._policies = policies
        self._house = house
        self._counts = counts
        self._recipes = recipes

    async def status(self, now: datetime) -> StatusOut:
        """Everything at this moment."""
        jobs = self._store.all()
        used = slots_used(jobs)
        waits = [(now - job.created_at).total_seconds() for job in jobs if job.state == JobState.QUEUED]
        tally = Counter(job.state for job in jobs)
        roles = sorted({*self._counts(), *(job.role for job in jobs), *await self._policies.roles()})
        found = await asyncio.gather(*(self._role(role, jobs) for role in roles))
        return StatusOut(
            training_enabled=self._house.abilities.training_enabled,
            algorithms=sorted(self._house.abilities.algorithms),
            jobs={state.value: tally[state] for state in JobState},
            slots={pool: SlotsOut(used=used[pool], total=total) for pool, total in self._house.slots.items()},
            longest_wait_s=max(waits, default=0.0),
            roles=dict(zip(roles, found, strict=True)),
        )

    def training(self, now: datetime, role: str | None) -> TrainingStatusOut:
        """What trains at this moment, of one role or of all; slots are everybody's."""
        everything = self._store.all()
        jobs = [job for job in everything if role is None or job.role == role]
        used, tally = slots_used(everything), Counter(job.state for job in jobs)
        queued = in_order((job for job in jobs if job.state == JobState.QUEUED), self._house.ageing_s)
        return TrainingStatusOut(
            training_enabled=self._house.abilities.training_enabled,
            algorithms=sorted(self._house.abilities.algorithms),
            slots={pool: SlotsOut(used=used[pool], total=total) for pool, total in self._house.slots.items()},
            jobs={state.value: tally[state] for state in JobState},
            active=[brief(job) for job in jobs if job.state in ACTIVE],
            waiting=[brief(job) for job in queued[:WAITING]],
            longest_wait_s=max(((now - job.created_at).total_seconds() for job in queued), default=0.0),
            last={job.role: brief(job) for job in sorted(jobs, key=_ended_at) if job.state in TERMINAL},
        )

    async def _role(self, role: str, jobs: list[Job]) -> RoleOut:
        route = (await self._policies.of(role)).route
        recipe = recipe_for(role, self._recipes)
        rewarded = self._counts().get(role, 0)
        own = [job.training_job_id for job in jobs if job.role == role]
        return RoleOut(
            stable=route.stable.name if route and route.stable else None,
            canary=route.canary.policy.name if route and route.canary else None,
            rewarded=rewarded,
            since_last_training=max(0, rewarded - counted_from(role, jobs)),
            threshold=recipe.threshold if recipe else None,
            last_job=own[-1] if own else None,
        )


def _ended_at(job: Job) -> datetime:
    return job.finished_at or job.updated_at
