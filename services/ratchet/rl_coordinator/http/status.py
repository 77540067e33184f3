"""The HTTP routes of the state of training: all of it, what trains now, and learning from preferences."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.core.contract.http.status import (
    ConfigOut,
    DpoRoleOut,
    DpoStatusOut,
    JobBrief,
    RoleOut,
    SlotsOut,
    StatusOut,
    TrainingStatusOut,
)
from ratchet.core.contract.policy_manifest import ADAPTER
from ratchet.core.contract.snapshot import PAIRS
from ratchet.core.contract.state import ENDED, READY, Job, JobState, PolicyVersion, Route
from ratchet.core.rules.access import KeyScope, RoleSet
from ratchet.core.rules.algorithms import dataset_format
from ratchet.core.service.control_api import ControlApi
from ratchet.rl_coordinator.http.models import RoleFilter
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.jobs.domain.jobs import ACTIVE
from ratchet.rl_coordinator.registry import Registry
from ratchet.rl_coordinator.triggers import Triggers

WAITING = 100
"""Longest list of waiting jobs."""

_PREFERENCES = (
    "SELECT source, uniqExact(preference_id, event_id) AS n FROM preferences WHERE role = {role:String} GROUP BY source"
)


@dataclass(frozen=True)
class StatusRoutes:
    """`/v1/status` and what is under it."""

    jobs: Jobs
    registry: Registry
    triggers: Triggers
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        api.route("GET", "/v1/status", self.status, scope=KeyScope.VIEW)
        api.route("GET", "/v1/status/training", self.training, scope=KeyScope.VIEW)
        api.route("GET", "/v1/status/dpo", self.dpo, scope=KeyScope.VIEW)

    async def status(self, roles: RoleSet) -> StatusOut:
        """Jobs by state, slots that they use, models, and where every role stands."""
        jobs = self._jobs(roles)
        registered = await self.registry.policies.roles()
        of_role = self.jobs.store.jobs_by_role()
        every = {*self.triggers.rewarded.counts(), *of_role, *registered}
        known = sorted(role for role in every if role in roles)
        policies = dict(zip(known, await asyncio.gather(*map(self.registry.policies.policies_of, known)), strict=True))
        models = [model for of_one in policies.values() for model in of_one.models()]
        statuses = {role: _adapter_status(policies[role].versions.values(), of_role.get(role, [])) for role in known}
        amounts = self.jobs.abilities.amounts
        return StatusOut(
            training_enabled=self.jobs.abilities.training_enabled,
            algorithms=sorted(self.jobs.abilities.algorithms),
            jobs=_by_state(jobs),
            slots=self._slots(jobs),
            longest_wait_s=self._longest_wait_s(jobs),
            total_models=len(models),
            total_adapters=sum(model.kind == ADAPTER for model in models),
            adapter_status={role: status for role, status in statuses.items() if status is not None},
            config=ConfigOut(
                history_limit=amounts.most,
                minimum_rows=amounts.fewest,
                minimum_pairs=amounts.pairs,
                human_share=amounts.human_share,
            ),
            roles={role: self._role(role, policies[role].route, of_role.get(role, [])) for role in known},
        )

    async def training(self, roles: RoleSet, role: RoleFilter = None) -> TrainingStatusOut:
        """What trains now, what waits, and how the last trainings ended."""
        everything = self._jobs(roles)
        jobs = [job for job in everything if role is None or job.role == role]
        queued = self.jobs.schedule.in_order(job for job in jobs if job.state == JobState.QUEUED)
        by_end = sorted(jobs, key=lambda job: job.finished_at or job.updated_at)
        return TrainingStatusOut(
            training_enabled=self.jobs.abilities.training_enabled,
            algorithms=sorted(self.jobs.abilities.algorithms),
            slots=self._slots(everything),
            jobs=_by_state(jobs),
            active=[_brief(job) for job in jobs if job.state in ACTIVE],
            waiting=[_brief(job) for job in queued[:WAITING]],
            longest_wait_s=self._longest_wait_s(jobs),
            last={job.role: _brief(job) for job in by_end if job.state in ENDED},
        )

    async def dpo(self, roles: RoleSet, role: RoleFilter = None) -> DpoStatusOut:
        """Preferences by role and source, what came since the last DPO, and whether the trigger would fire."""
        from_pairs = (job for job in self.jobs.store.all_jobs() if dataset_format(job.algorithm) == PAIRS)
        known = {*self.triggers.preferences.counts(), *(job.role for job in from_pairs)}
        asked = [role] if role is not None else sorted(name for name in known if name in roles)
        of_roles = await asyncio.gather(*(self._preferences(name, self.jobs.store.jobs_of(name)) for name in asked))
        return DpoStatusOut(roles=dict(zip(asked, of_roles, strict=True)))

    def _jobs(self, roles: RoleSet) -> list[Job]:
        return [job for job in self.jobs.store.all_jobs() if job.role in roles]

    def _role(self, role: str, route: Route | None, jobs: Sequence[Job]) -> RoleOut:
        """`jobs`: its own, oldest first."""
        trigger = self.triggers.rewarded
        return RoleOut(
            stable=route.stable.name if route and route.stable else None,
            canary=route.canary.policy.name if route and route.canary else None,
            rewarded=trigger.counts().get(role, 0),
            since_last_training=trigger.standing(role).new,
            threshold=trigger.threshold(role),
            last_job=jobs[-1].training_job_id if jobs else None,
            triggers=self.triggers.standings(role, jobs),
        )

    async def _preferences(self, role: str, jobs: Sequence[Job]) -> DpoRoleOut:
        """`jobs`: its own, oldest first."""
        rows = await self.jobs.warehouse.rows(_PREFERENCES, {"role": role})
        pairs = {row["source"]: int(row["n"]) for row in rows}
        standing = self.triggers.preferences.standing(role)
        own = [job for job in jobs if dataset_format(job.algorithm) == PAIRS]
        enabled = self.jobs.abilities.training_enabled
        versions = (await self.registry.policies.policies_of(role)).versions
        ready = [
            v for v, policy in versions.items() if policy.status == READY and dataset_format(policy.algorithm) == PAIRS
        ]
        return DpoRoleOut(
            pairs=pairs,
            total=sum(pairs.values()),
            since_last_dpo=standing.new,
            threshold=self.triggers.preferences.threshold(role),
            would_fire=standing.is_due and enabled,
            why=self.triggers.why_dpo(role, jobs) if enabled else "training is disabled here",
            last_job=_brief(own[-1]) if own else None,
            newest_policy=versions[max(ready)].name if ready else None,
        )

    def _slots(self, jobs: Sequence[Job]) -> dict[str, SlotsOut]:
        schedule = self.jobs.schedule
        used = schedule.slots_used(jobs)
        return {pool: SlotsOut(used=used[pool], total=total) for pool, total in schedule.slots.items()}

    def _longest_wait_s(self, jobs: Sequence[Job]) -> float:
        now = self.now()
        waits = ((now - job.created_at).total_seconds() for job in jobs if job.state == JobState.QUEUED)
        return max(waits, default=0.0)


def _by_state(jobs: Sequence[Job]) -> dict[str, int]:
    tally = Counter(job.state for job in jobs)
    return {state.value: tally[state] for state in JobState}


def _adapter_status(policies: Iterable[PolicyVersion], jobs: Sequence[Job]) -> str | None:
    """Of a role's newest adapter, else of its newest training; None where there is neither. `jobs`: oldest first."""
    adapters = [policy for policy in policies if policy.kind == ADAPTER]
    if adapters:
        return max(adapters, key=lambda policy: policy.version).status
    return jobs[-1].policy_status if jobs else None


def _brief(job: Job) -> JobBrief:
    """A job in one line."""
    progress, measured = job.progress, job.metrics
    return JobBrief(
        training_job_id=job.training_job_id,
        role=job.role,
        algorithm=job.algorithm,
        state=job.state,
        created_at=job.created_at,
        percent_complete=progress.percent_complete if progress else None,
        eta_s=progress.eta_seconds if progress else None,
        loss=measured.loss if measured else None,
        reward_mean=measured.reward_mean if measured else None,
        finished_at=job.finished_at,
        error=job.error.message if job.error else None,
    )
