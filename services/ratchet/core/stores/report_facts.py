"""What a time brought, as reports have it, from ClickHouse: trajectories, rewards, trainings, policies and rollouts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ratchet.core.errors import WarehouseTooSlow
from ratchet.core.rules.reports import CHANGES, TAKEN_BACK, EndedJob, Facts, PolicyChange
from ratchet.core.stores.statistics import StatisticsQuery, statistics
from ratchet.core.stores.trajectory_search import instant, millis

if TYPE_CHECKING:
    from ratchet.core.contract.http.statistics import GroupOut
    from ratchet.core.stores.warehouse import Row, Warehouse

_WITHIN = f"at >= {instant('since')} AND at < {instant('until')} AND match(role, {{within:String}})"
_JOBS = f"""
SELECT s.training_job_id AS job_id, any(s.role) AS role, any(r.algorithm) AS algorithm,
    argMax(toString(s.status), s.at) AS state,
    argMax(JSONExtractString(s.body, 'error', 'message'), s.at) AS error
FROM (SELECT * FROM training_statuses FINAL WHERE {_WITHIN}) AS s
LEFT JOIN (
    SELECT training_job_id, any(toString(algorithm)) AS algorithm FROM training_requests GROUP BY training_job_id
) AS r ON r.training_job_id = s.training_job_id
GROUP BY job_id ORDER BY max(s.at)
"""  # noqa: S608 - our own names
_REWARD = "'evidence', 'differences', 'reward'"
_CHANGES = f"""
SELECT * FROM (
SELECT role, to_version AS version, from_version AS before, toString(verdict) AS verdict, reason, actor, at,
    [JSONExtract(body, {_REWARD}, 'difference', 'Nullable(Float64)'),
     JSONExtract(body, {_REWARD}, 'low', 'Nullable(Float64)'),
     JSONExtract(body, {_REWARD}, 'high', 'Nullable(Float64)')] AS harm
FROM rollouts FINAL WHERE {_WITHIN} AND verdict IN ({", ".join(f"'{each}'" for each in sorted(CHANGES | TAKEN_BACK))})
UNION ALL
SELECT role, assumeNotNull(policy_version), NULL, 'registered', '', '', at, [NULL, NULL, NULL]
FROM deployments FINAL WHERE {_WITHIN} AND state = 'registered' AND policy_version IS NOT NULL
) ORDER BY at
"""  # noqa: S608 - as above


async def facts_between(warehouse: Warehouse, since: datetime, until: datetime, roles: Iterable[str] = ()) -> Facts:
    """Of these roles; of all where none is named. Raises `WarehouseUnavailable`."""
    named = "|".join(map(re.escape, roles))
    within = f"^({named})$" if named else ".*"
    parameters = {"since": millis(since), "until": millis(until), "within": within}
    return Facts(
        since=since,
        until=until,
        roles=await _by_role(warehouse, since, until, within),
        before=await _by_role(warehouse, since - (until - since), since, within),
        jobs=[EndedJob(**row) for row in await warehouse.rows(_JOBS, parameters)],
        changes=[_change(row) for row in await warehouse.rows(_CHANGES, parameters)],
    )


async def _by_role(warehouse: Warehouse, since: datetime, until: datetime, within: str) -> list[GroupOut] | None:
    asked = StatisticsQuery(since=since, until=until, every="week", by=("role",), within=within)
    try:
        return (await statistics(warehouse, asked)).groups
    except WarehouseTooSlow:
        return None


def _change(row: Row) -> PolicyChange:
    members: dict[str, Any] = dict(row)
    harm: list[float | None] = members.pop("harm")
    figures = [value for value in harm if value is not None and math.isfinite(value)]
    earned = (-figures[0], -figures[2], -figures[1]) if len(figures) == 3 else None
    return PolicyChange(**members, earned=earned)
