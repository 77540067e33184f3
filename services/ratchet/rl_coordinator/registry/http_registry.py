"""The HTTP routes of the model registry: versions, where they stand, and where they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import Path, Query

from ratchet.contract.http.models import LineageOut, ModelOut, ModelsOut, OutcomeTimesOut, RoleModelsOut
from ratchet.contract.state import Job
from ratchet.errors import NotFound
from ratchet.rl_coordinator.registry.clickhouse_lineage import PolicyHistory, Span
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies
from ratchet.rl_coordinator.registry.provenance import Page, Provenance
from ratchet.rl_coordinator.registry.shown import model_out, role_models_out
from ratchet.rules.arms import ROLE
from ratchet.service.control_api import ControlApi

Role = Annotated[str, Path(pattern=f"^{ROLE.pattern}$")]
RoleFilter = Annotated[str | None, Query(pattern=f"^{ROLE.pattern}$", description="Only this role.")]
Version = Annotated[int, Path(ge=1, lt=2**31)]
Stage = Annotated[Literal["staging", "production", "archived"] | None, Query()]
Status = Annotated[Literal["pending", "training", "ready", "failed"] | None, Query()]
HISTORY = timedelta(days=7)
"""How far back outcomes are looked at."""
UNKNOWN: Mapping[int, str] = {404: "There is no such role or policy."}


class RegistryRoutes:
    """`/v1/models` and what is under it."""

    def __init__(
        self,
        *,
        policies: KvPolicies,
        provenance: Provenance,
        jobs: Callable[[], list[Job]],
        history: PolicyHistory,
        now: Callable[[], datetime],
    ) -> None:
        """`jobs`: all of them, oldest first."""
        self._policies = policies
        self._provenance = provenance
        self._jobs = jobs
        self._history = history
        self._now = now

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/models/{role}/{version}"
        api.route("GET", "/v1/models", self.list_models, tag="models")
        api.route("GET", "/v1/models/{role}", self.get_role, tag="models", errors=UNKNOWN)
        api.route("GET", one, self.get_model, tag="models", errors=UNKNOWN)
        api.route("GET", f"{one}/lineage", self.get_lineage, tag="models", errors=UNKNOWN)
        api.route("GET", f"{one}/outcome-times", self.get_outcome_times, tag="models", errors=UNKNOWN)

    async def list_models(
        self,
        role: RoleFilter = None,
        stage: Stage = None,
        status: Status = None,
        algorithm: Annotated[str | None, Query()] = None,
    ) -> ModelsOut:
        """Registered policies by role and version."""
        asked = {"stage": stage, "status": status, "algorithm": algorithm}
        chosen = {name: value for name, value in asked.items() if value is not None}
        roles = [role] if role is not None else await self._policies.roles()
        of_roles = await asyncio.gather(*(self._policies.of(each) for each in roles))
        models = [model_out(one.versions[number], one.route) for one in of_roles for number in sorted(one.versions)]
        return ModelsOut(models=[one for one in models if all(getattr(one, name) == chosen[name] for name in chosen)])

    async def get_role(self, role: Role) -> RoleModelsOut:
        """One role: what serves it, its versions, and trainings that have made none."""
        policies = await self._policies.of(role)
        jobs = [job for job in self._jobs() if job.role == role]
        if policies.route is None and not policies.versions and not jobs:
            raise NotFound(f"no such role: {role}")
        return role_models_out(role, policies.route, policies.versions, jobs[::-1])

    async def get_model(self, role: Role, version: Version) -> ModelOut:
        """One registered policy."""
        policy = await self._policies.version(role, version)
        return model_out(policy, (await self._policies.of(role)).route)

    async def get_lineage(
        self,
        role: Role,
        version: Version,
        offset: Annotated[int, Query(ge=0, description="First trajectory and preference to list.")] = 0,
        limit: Annotated[int, Query(ge=0, le=500, description="How many of each to list.")] = 20,
        parents: Annotated[int, Query(ge=0, le=20, description="So many ancestors are walked as well.")] = 0,
    ) -> LineageOut:
        """Where a policy comes from: job, snapshot, trajectories, rewards, people."""
        return await self._provenance.of(role, version, Page(offset, limit, parents))

    async def get_outcome_times(
        self,
        role: Role,
        version: Version,
        within_s: Annotated[float, Query(gt=0, le=30 * 86_400, description="Slower outcomes are left out.")] = 21_600,
        limit: Annotated[int, Query(ge=1, le=10_000, description="How many outcomes at most.")] = 2_000,
    ) -> OutcomeTimesOut:
        """How long outcomes of a policy took lately: what a rollout's horizon is set by."""
        await self._policies.version(role, version)
        until = self._now() - timedelta(seconds=within_s)
        span = Span(until - HISTORY, until, within_s)
        seconds = await self._history.outcome_times(role, version, span, limit)
        return OutcomeTimesOut(
            role=role, version=version, since=span.since, until=until, within_s=within_s, seconds=seconds
        )
