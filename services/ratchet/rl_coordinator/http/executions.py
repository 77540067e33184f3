"""The HTTP route of executions of workflows: what planners learn from and are judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ratchet.core.contract.http.workflows import ExecutionsOut
from ratchet.core.datasets.clickhouse_executions import Executions
from ratchet.core.rules.access import KeyScope
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.control_api import ControlApi

PATH = "/v1/workflows/executions"
NO_PLACE: Mapping[int, str] = {400: "`after` is not the `next` of a page."}
MOST = 500
"""Executions of a page: each has a plan with all choices, some kilobytes."""


@dataclass(frozen=True)
class ExecutionRoutes:
    """`/v1/workflows/executions`."""

    executions: Executions

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        api.route("GET", PATH, self.list_executions, scope=KeyScope.VIEW, errors=NO_PLACE, reads=True)

    async def list_executions(
        self,
        role: Annotated[str, Field(pattern=f"^{ROLE.pattern}$", description="The planner's role.")],
        version: Annotated[int | None, Field(ge=0, lt=2**31, description="Only of this version of it.")] = None,
        after: Annotated[str | None, Field(max_length=100, description="`next` of the page before.")] = None,
        limit: Annotated[int, Field(ge=1, le=MOST)] = 100,
    ) -> ExecutionsOut:
        """Executions of workflows that ended, oldest first."""
        page = await self.executions.page(role, after, limit, version)
        return ExecutionsOut(executions=page.executions, next=page.next)
