"""The HTTP routes of the model registry: policies, where they stand and come from, and prompts to try one on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from ratchet.core.contract.http.models import (
    LineageOut,
    ModelOut,
    ModelsOut,
    OutcomeTimesOut,
    ReplayPromptsOut,
    ReplayRequestsOut,
    RoleModelsOut,
    TrainingOut,
    TrajectoryCostsOut,
)
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import KeyScope, RoleSet
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.control_api import ControlApi
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.registry import Page, Registry

Role = Annotated[str, Field(pattern=f"^{ROLE.pattern}$")]
RoleFilter = Annotated[str | None, Field(pattern=f"^{ROLE.pattern}$", description="Only this role.")]
Version = Annotated[int, Field(ge=0, lt=2**31)]
Stage = Literal["staging", "production", "archived"] | None
Status = Literal["pending", "training", "ready", "failed"] | None
HISTORY = timedelta(days=7)
"""How far back outcomes and costs are looked at."""
LONGEST = timedelta(hours=6)
"""No horizon is longer: later calls of a trajectory are no part of its cost."""
SILENT = timedelta(minutes=10)
"""Younger trajectories may go on: the collector takes one that is silent for so long as ended."""
UNMADE = 20
"""Longest list of jobs that have made no policy."""
UNKNOWN: Mapping[int, str] = {404: "There is no such role or policy."}
NO_REPLAY: Mapping[int, str] = {**UNKNOWN, 409: "Nothing says what the candidate's lineage has learned from."}


@dataclass(frozen=True)
class ModelRoutes:
    """`/v1/models` and what is under it, and `/v1/replay`."""

    registry: Registry
    jobs: Jobs
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/models/{role}/{version}"
        api.route("GET", "/v1/models", self.list_models, scope=KeyScope.VIEW)
        api.route("GET", "/v1/models/{role}", self.get_role, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", one, self.get_model, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", f"{one}/lineage", self.get_lineage, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", f"{one}/outcome-times", self.get_outcome_times, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route("GET", f"{one}/costs", self.get_costs, scope=KeyScope.VIEW, errors=UNKNOWN)
        api.route(
            "GET", "/v1/replay/prompts", self.get_replay_prompts, scope=KeyScope.VIEW, errors=NO_REPLAY, reads=True
        )
        api.route("GET", "/v1/replay/requests", self.get_recorded_requests, scope=KeyScope.VIEW, reads=True)

    async def list_models(
        self,
        roles: RoleSet,
        role: RoleFilter = None,
        stage: Stage = None,
        status: Status = None,
        algorithm: str | None = None,
    ) -> ModelsOut:
        """Registered policies by role and version."""
        given = {"stage": stage, "status": status, "algorithm": algorithm}
        filters = {name: value for name, value in given.items() if value is not None}
        known = [role] if role is not None else await self.registry.policies.roles()
        of_roles = await asyncio.gather(*(self.registry.policies.policies_of(name) for name in known if name in roles))
        models = [model for policies in of_roles for model in policies.models()]
        return ModelsOut(
            models=[model for model in models if all(getattr(model, name) == filters[name] for name in filters)]
        )

    async def get_role(self, role: Role) -> RoleModelsOut:
        """One role: what serves it, its versions, and trainings that have made none."""
        policies = await self.registry.policies.policies_of(role)
        route, versions = policies.route, policies.versions
        jobs = [job for job in reversed(self.jobs.store.all_jobs()) if job.role == role]
        if route is None and not versions and not jobs:
            raise NotFound(f"no such role: {role}")
        made = {policy.training_job_id for policy in versions.values()}
        unmade = [
            TrainingOut(
                training_job_id=job.training_job_id,
                algorithm=job.algorithm,
                status=job.policy_status,
                state=job.state,
                created_at=job.created_at,
                error=job.error.message if job.error else None,
            )
            for job in jobs
            if job.policy_status is not None and job.training_job_id not in made
        ]
        return RoleModelsOut(
            role=role,
            production=route.stable.name if route and route.stable else None,
            canary=route.canary.policy.name if route and route.canary else None,
            previous=route.previous.name if route and route.previous else None,
            versions=policies.models(),
            training=unmade[:UNMADE],
        )

    async def get_model(self, role: Role, version: Version) -> ModelOut:
        """One registered policy."""
        return (await self.registry.policies.policies_with(role, version)).model(version)

    async def get_lineage(
        self,
        role: Role,
        version: Version,
        offset: Annotated[int, Field(ge=0, description="First trajectory and preference to list.")] = 0,
        limit: Annotated[int, Field(ge=0, le=500, description="How many of each to list.")] = 20,
        parents: Annotated[int, Field(ge=0, le=20, description="So many ancestors are walked as well.")] = 0,
    ) -> LineageOut:
        """Where a policy comes from: job, snapshot, trajectories, rewards, people."""
        return await self.registry.provenance.trace(role, version, Page(offset, limit, parents))

    async def get_outcome_times(
        self,
        role: Role,
        version: Version,
        within_s: Annotated[float, Field(gt=0, le=30 * 86_400, description="Slower outcomes are left out.")] = 21_600,
        limit: Annotated[int, Field(ge=1, le=10_000, description="How many outcomes at most.")] = 2_000,
    ) -> OutcomeTimesOut:
        """How long outcomes of a policy took lately: what a rollout's horizon is set by."""
        await self.registry.policies.get_policy(role, version)
        until = self.now() - timedelta(seconds=within_s)
        since = until - HISTORY
        seconds = await self.registry.history.outcome_times(
            role, version, since=since, until=until, within_s=within_s, limit=limit
        )
        return OutcomeTimesOut(role=role, version=version, since=since, until=until, within_s=within_s, seconds=seconds)

    async def get_costs(
        self,
        role: Role,
        version: Version,
        limit: Annotated[int, Field(ge=1, le=10_000, description="How many trajectories at most.")] = 2_000,
    ) -> TrajectoryCostsOut:
        """What trajectories of a policy cost lately: what a rollout's cap of costs is set by."""
        await self.registry.policies.get_policy(role, version)
        until = self.now() - SILENT
        since = until - HISTORY
        costs = await self.registry.history.trajectory_costs(
            role, version, since=since, until=until, within_s=LONGEST.total_seconds(), limit=limit
        )
        return TrajectoryCostsOut(role=role, version=version, since=since, until=until, costs_usd=costs)

    async def get_replay_prompts(
        self,
        role: Annotated[str, Field(pattern=f"^{ROLE.pattern}$")],
        version: Annotated[int, Field(ge=0, lt=2**31, description="The candidate.")],
        limit: Annotated[int, Field(ge=1, le=1_000)] = 400,
    ) -> ReplayPromptsOut:
        """Logged prompts newer than the candidate's snapshot and outside the groups that its lineage learned from."""
        return await self.registry.replay.choose_prompts(role, version, limit)

    async def get_recorded_requests(
        self,
        role: Annotated[str, Field(pattern=f"^{ROLE.pattern}$")],
        limit: Annotated[int, Field(ge=1, le=1_000)] = 400,
    ) -> ReplayRequestsOut:
        """Requests of the last week as agents sent them, without those that named a version."""
        return await self.registry.replay.recorded_requests(role, self.now() - HISTORY, limit)
