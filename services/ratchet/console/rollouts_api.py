"""The HTTP routes of past rollouts: what was decided, on what evidence, and which runs went badly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ratchet.console.rollouts import Rollouts
from ratchet.core.contract.http.console import FailuresOut, PastRolloutsOut, RolloutHistoryOut
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.control_api import ControlApi

UNKNOWN: Mapping[int, str] = {404: "No decision of such a rollout is stored."}
Role = Annotated[str, Field(max_length=64)]
RolloutId = Annotated[str | None, Field(max_length=200, description="By default the role's newest rollout.")]


def add_routes(api: ControlApi, rollouts: Rollouts) -> None:
    """Serve `/v1/rollouts`."""

    async def list_past_rollouts(role: Role) -> PastRolloutsOut:
        """List a role's rollouts, newest first, each with its last decision."""
        return await rollouts.past(role)

    async def get_rollout_history(role: Role, rollout_id: RolloutId = None) -> RolloutHistoryOut:
        """Show every decision of a rollout with the evidence of its moment, oldest first."""
        return await rollouts.history(role, rollout_id)

    async def list_failures(role: Role, rollout_id: RolloutId = None) -> FailuresOut:
        """List the trajectories of both arms that went worst in a rollout's time."""
        return await rollouts.failures(role, rollout_id)

    api.route("GET", "/v1/rollouts/{role}/past", list_past_rollouts, scope=KeyScope.VIEW)
    api.route("GET", "/v1/rollouts/{role}/history", get_rollout_history, scope=KeyScope.VIEW, errors=UNKNOWN)
    api.route("GET", "/v1/rollouts/{role}/failures", list_failures, scope=KeyScope.VIEW, errors=UNKNOWN)
