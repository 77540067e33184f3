"""Stored executions of workflows: pages of them, and what snapshots need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract import Reward
from ratchet.core.contract.training import DateRange
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.errors import BadRequest
from ratchet.core.stores.history import History
from ratchet.core.stores.warehouse import Warehouse

_OF_ROLE = "FROM workflow_executions FINAL WHERE role = {role:String}"
_BETWEEN = "at >= {start:DateTime64(3, 'UTC')} AND at < {end:DateTime64(3, 'UTC')}"
_NEWEST = f"""
SELECT workflow_id {_OF_ROLE} AND {_BETWEEN} ORDER BY at DESC, workflow_id DESC LIMIT {{limit:UInt32}}
"""
_COUNT = f"SELECT count() AS n, max(sequence) AS sequence {_OF_ROLE}"
_PAGE = f"""
SELECT at, workflow_id {_OF_ROLE}
AND (at, workflow_id) > ({{at:DateTime64(3, 'UTC')}}, {{workflow_id:String}})
AND ({{version:Int64}} < 0 OR policy_version = {{version:Int64}})
ORDER BY at, workflow_id LIMIT {{limit:UInt32}}
"""
_BODIES = f"SELECT workflow_id, body {_OF_ROLE} AND workflow_id IN {{ids:Array(String)}}"
"""Apart from the page, whose order takes all places of the role: bodies are read of those alone that are shown."""
_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 1, 1, tzinfo=UTC)
"""What ClickHouse's instants reach from and to."""


@dataclass(frozen=True, slots=True)
class ExecutionsPage:
    """Executions, oldest first, and where the next page begins; None at the end."""

    executions: list[JsonObject]
    next: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a role has."""

    executions: int
    watermark: int
    """Newest stored sequence of RL_WORKFLOWS: queries that follow see at least this."""


class Executions:
    """Reads the executions of one role."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._history = History(warehouse)

    async def stored(self, role: str) -> Stored:
        """How many there are."""
        (row,) = await self._warehouse.rows(_COUNT, {"role": role})
        return Stored(int(row["n"]), int(row["sequence"]))

    async def newest(self, role: str, limit: int, within: DateRange | None) -> list[str]:
        """Ids of the newest ones that ended within a time, oldest first."""
        start, end = (within.start, within.end) if within else (None, None)
        bounds = {"role": role, "limit": limit, "start": start or _EARLIEST, "end": end or _LATEST}
        rows = await self._warehouse.rows(_NEWEST, bounds)
        return [row["workflow_id"] for row in reversed(rows)]

    async def executions(self, role: str, ids: Sequence[str]) -> dict[str, WorkflowExecution]:
        """Stored executions by id."""
        executions = await self._history.messages("workflow_executions", WorkflowExecution, role, ids)
        return {execution.workflow_id: execution for execution in executions}

    async def rewards(self, role: str, ids: Sequence[str]) -> dict[str, float]:
        """By id, the total of the newest reward of the parent trajectory."""
        rewards = await self._history.messages("rewards", Reward, role, ids)
        ordered = sorted(rewards, key=lambda reward: (reward.timestamp, reward.revision))
        return {reward.trajectory_id: reward.total_reward for reward in ordered}

    async def page(self, role: str, after: str | None, limit: int, version: int | None = None) -> ExecutionsPage:
        """Those after a place, of one version of the planner where one is named. Raises `BadRequest`."""
        at, workflow_id = _place(after) if after else (_EARLIEST, "")
        bounds = {"role": role, "at": at, "workflow_id": workflow_id, "limit": limit + 1}
        rows = await self._warehouse.rows(_PAGE, {**bounds, "version": -1 if version is None else version})
        shown = rows[:limit]
        more = f"{shown[-1]['at'].isoformat()}/{shown[-1]['workflow_id']}" if len(rows) > limit else None
        ids = [row["workflow_id"] for row in shown]
        bodies = {
            row["workflow_id"]: decode(row["body"].encode(), JsonObject)
            for row in (await self._warehouse.rows(_BODIES, {"role": role, "ids": ids}) if ids else ())
        }
        return ExecutionsPage([bodies[workflow_id] for workflow_id in ids if workflow_id in bodies], more)


def _place(after: str) -> tuple[datetime, str]:
    at, _, workflow_id = after.partition("/")
    try:
        return msgspec.convert(at, datetime), workflow_id
    except msgspec.ValidationError as error:
        raise BadRequest("`after` is the `next` of a page", param="after") from error
