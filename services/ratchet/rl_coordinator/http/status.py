"""The HTTP routes of what is going on: all of it, training, and learning from preferences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter

from ratchet.rl_coordinator.http.models import StatusOut
from ratchet.rl_coordinator.http.overview import Overview
from ratchet.rl_coordinator.http.preference_overview import PreferenceOverview
from ratchet.rl_coordinator.http.status_models import DpoStatusOut, TrainingStatusOut
from ratchet.rl_coordinator.registry.http_registry import RoleFilter


@dataclass(frozen=True)
class Statuses:
    """What the routes work with."""

    overview: Overview
    preferences: PreferenceOverview
    now: Callable[[], datetime]


def status_routes(statuses: Statuses) -> APIRouter:
    """`/v1/status` and what is under it."""
    routes = APIRouter(prefix="/v1/status", tags=["status"])

    @routes.get("")
    async def status() -> StatusOut:
        """Jobs by state, slots, and where every role stands."""
        return await statuses.overview.status(statuses.now())

    @routes.get("/training")
    async def training(role: RoleFilter = None) -> TrainingStatusOut:
        """What trains now, what waits, and how the last trainings ended."""
        return statuses.overview.training(statuses.now(), role)

    @routes.get("/dpo")
    async def dpo(role: RoleFilter = None) -> DpoStatusOut:
        """Preferences by role and source, what came since the last DPO, and whether the trigger would fire."""
        return await statuses.preferences.status(role)

    return routes
