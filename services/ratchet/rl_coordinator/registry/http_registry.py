"""The HTTP routes of the model registry: versions, where they stand, and where they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from ratchet.contract.state import Job
from ratchet.errors import NotFound
from ratchet.rl_coordinator.http.models import ErrorOut
from ratchet.rl_coordinator.registry.clickhouse_lineage import History, Span
from ratchet.rl_coordinator.registry.http_registry_models import (
    LineageOut,
    ModelOut,
    ModelsOut,
    OutcomeTimesOut,
    RoleModelsOut,
    Stage,
    Status,
    model_out,
    role_models_out,
)
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.registry.provenance import Page, Provenance
from ratchet.rules.arms import ROLE

Role = Annotated[str, Path(pattern=f"^{ROLE.pattern}$")]
RoleFilter = Annotated[str | None, Query(pattern=f"^{ROLE.pattern}$", description="Only this role.")]
Version = Annotated[int, Path(ge=1, lt=2**31)]
HISTORY = timedelta(days=7)
"""How far back outcomes are looked at."""
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": ErrorOut, "description": "There is no such role or policy."}}


@dataclass(frozen=True)
class Registry:
    """What the routes work with."""

    policies: KvPolicies
    provenance: Provenance
    jobs: Callable[[], list[Job]]
    """All jobs, oldest first."""
    history: History
    now: Callable[[], datetime]

    async def models(self, role: str | None) -> list[ModelOut]:
        """Policies by role and version."""
        roles = [role] if role is not None else await self.policies.roles()
        found = await asyncio.gather(*(self.policies.of(each) for each in roles))
        return [model_out(one.versions[number], one.route) for one in found for number in sorted(one.versions)]


def registry_routes(registry: Registry) -> APIRouter:
    """`/v1/models` and what is under it."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("")
    async def list_models(
        role: RoleFilter = None,
        stage: Annotated[Stage | None, Query()] = None,
        status: Annotated[Status | None, Query()] = None,
        algorithm: Annotated[str | None, Query()] = None,
    ) -> ModelsOut:
        """Registered policies by role and version."""
        wanted = {"stage": stage, "status": status, "algorithm": algorithm}
        given = {name: value for name, value in wanted.items() if value is not None}
        found = [
            model
            for model in await registry.models(role)
            if all(getattr(model, name) == value for name, value in given.items())
        ]
        return ModelsOut(models=found)

    @routes.get("/{role}", responses=UNKNOWN)
    async def get_role(role: Role) -> RoleModelsOut:
        """One role: what serves it, its versions, and trainings that have made none."""
        found = await registry.policies.of(role)
        jobs = [job for job in registry.jobs() if job.role == role]
        if found.route is None and not found.versions and not jobs:
            raise NotFound(f"no such role: {role}")
        return role_models_out(role, found.route, found.versions, jobs[::-1])

    @routes.get("/{role}/{version}", responses=UNKNOWN)
    async def get_model(role: Role, version: Version) -> ModelOut:
        """One registered policy."""
        policy = await registry.policies.version(role, version)
        return model_out(policy, (await registry.policies.of(role)).route)

    _add_lineage(routes, registry)
    _add_outcome_times(routes, registry)
    return routes


def _add_lineage(routes: APIRouter, registry: Registry) -> None:
    @routes.get("/{role}/{version}/lineage", responses=UNKNOWN)
    async def get_lineage(
        role: Role,
        version: Version,
        offset: Annotated[int, Query(ge=0, description="First trajectory and preference to list.")] = 0,
        limit: Annotated[int, Query(ge=0, le=500, description="How many of each to list.")] = 20,
        parents: Annotated[int, Query(ge=0, le=20, description="So many ancestors are walked as well.")] = 0,
    ) -> LineageOut:
        """Where a policy comes from: job, snapshot, trajectories, rewards, people."""
        return await registry.provenance.of(role, version, Page(offset, limit, parents))


def _add_outcome_times(routes: APIRouter, registry: Registry) -> None:
    @routes.get("/{role}/{version}/outcome-times", responses=UNKNOWN)
    async def get_outcome_times(
        role: Role,
        version: Version,
        within_s: Annotated[float, Query(gt=0, le=30 * 86_400, description="Slower outcomes are left out.")] = 21_600,
        limit: Annotated[int, Query(ge=1, le=10_000, description="How many outcomes at most.")] = 2_000,
    ) -> OutcomeTimesOut:
        """How long outcomes of a policy took lately: what a rollout's horizon is set by."""
        await registry.policies.version(role, version)
        until = registry.now() - timedelta(seconds=within_s)
        span = Span(until - HISTORY, until, within_s)
        seconds = await registry.history.outcome_times(role, version, span, limit)
        return OutcomeTimesOut(
            role=role, version=version, since=span.since, until=until, within_s=within_s, seconds=seconds
        )
