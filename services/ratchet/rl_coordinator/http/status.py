"""The HTTP routes of what is going on: all of it, training, and learning from preferences."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ratchet.contract.http.status import DpoStatusOut, StatusOut, TrainingStatusOut
from ratchet.rl_coordinator.http.overview import Overview
from ratchet.rl_coordinator.http.preference_overview import PreferenceOverview
from ratchet.rl_coordinator.registry.http_registry import RoleFilter
from ratchet.service.control_api import ControlApi


class StatusRoutes:
    """`/v1/status` and what is under it."""

    def __init__(self, overview: Overview, preferences: PreferenceOverview, now: Callable[[], datetime]) -> None:
        self._overview = overview
        self._preferences = preferences
        self._now = now

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        api.route("GET", "/v1/status", self.status, tag="status")
        api.route("GET", "/v1/status/training", self.training, tag="status")
        api.route("GET", "/v1/status/dpo", self.dpo, tag="status")

    async def status(self) -> StatusOut:
        """Jobs by state, slots, and where every role stands."""
        return await self._overview.status(self._now())

    async def training(self, role: RoleFilter = None) -> TrainingStatusOut:
        """What trains now, what waits, and how the last trainings ended."""
        return self._overview.training(self._now(), role)

    async def dpo(self, role: RoleFilter = None) -> DpoStatusOut:
        """Preferences by role and source, what came since the last DPO, and whether the trigger would fire."""
        return await self._preferences.status(role)
