"""The data behind a policy, from the history: trajectories, rewards, opinions, preferences, pruned jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.core.stores.history import IDS_PER_QUERY, OF_ROLE, latest_rewards
from ratchet.core.stores.warehouse import Row, Warehouse

_TRAJECTORIES = """
SELECT trajectory_id, event_id, coalesce(group_key, task_id) AS task, source, outcome, policy_version, ended_at
FROM trajectories FINAL
WHERE role = {role:String} AND trajectory_id IN {ids:Array(String)}
"""
_KNOWN = "ingested_at <= {until:DateTime64(3)}"
_REWARDS = latest_rewards(
    "event_id",
    "total",
    "function",
    "revision",
    "at",
    where=f"{OF_ROLE} AND trajectory_id IN {{ids:Array(String)}} AND {_KNOWN}",
)
_FEEDBACK = f"""
SELECT rater, source, kind, uniqExact(trajectory_id, event_id) AS count
FROM feedback
WHERE {OF_ROLE} AND trajectory_id IN {{ids:Array(String)}} AND {_KNOWN}
GROUP BY rater, source, kind
"""  # noqa: S608 - our own names
_PREFERENCES = """
SELECT preference_id, event_id, source, rater, confidence, domain
FROM preferences FINAL
WHERE role = {role:String} AND preference_id IN {ids:Array(String)}
"""
_ANNOUNCEMENTS = """
SELECT * FROM (
    SELECT event_id, 'model.deployed' AS kind, toString(coalesce(d.state, '')) AS what, d.at AS at, causation_id
    FROM deployments AS d FINAL WHERE d.role = {role:String} AND d.policy_version = {version:UInt32}
    UNION ALL
    SELECT event_id, 'model.rollout' AS kind, toString(r.verdict) AS what, r.at AS at, causation_id
    FROM rollouts AS r FINAL WHERE r.role = {role:String} AND r.to_version = {version:UInt32}
)
ORDER BY at, kind DESC, event_id
LIMIT 200
"""
_REQUEST = """
SELECT event_id, algorithm, requester, trigger_reason, at
FROM training_requests FINAL
WHERE role = {role:String} AND training_job_id = {job:String}
LIMIT 1
"""
_STATUS = """
SELECT attempt, status, at
FROM training_statuses FINAL
WHERE training_job_id = {job:String}
ORDER BY at DESC, attempt DESC
LIMIT 1
"""
_OUTCOME_TIMES = """
SELECT greatest(0, dateDiff('millisecond', s.began, r.known)) / 1000 AS seconds
FROM (
    SELECT trajectory_id, min(at) AS began FROM starts
    WHERE role = {role:String} AND policy_version = {version:UInt32}
        AND at > {since:DateTime64(3)} AND at <= {until:DateTime64(3)}
    GROUP BY trajectory_id
) AS s
INNER JOIN (
    SELECT trajectory_id, min(at) AS known FROM rewards
    WHERE role = {role:String} AND at > {since:DateTime64(3)} AND mapContains(components, 'task_completion')
    GROUP BY trajectory_id
) AS r ON r.trajectory_id = s.trajectory_id
WHERE seconds <= {within_s:Float64}
ORDER BY s.began DESC
LIMIT {limit:UInt32}
"""
"""How long outcomes took, from the start to the first reward that knows the outcome: the newest ones."""
_COSTS = """
SELECT if(countIf(usd IS NULL) > 0, NULL, sum(usd)) AS cost
FROM (
    SELECT trajectory_id, called, usd, min(called) OVER (PARTITION BY trajectory_id) AS began
    FROM (
        SELECT trajectory_id, any(at) AS called, any(if(error IS NULL, cost_usd, ifNull(cost_usd, 0))) AS usd
        FROM turns
        WHERE role = {role:String} AND trajectory_id IN (
            SELECT trajectory_id FROM turns
            WHERE role = {role:String} AND ingested_at > {since:DateTime64(3)} AND policy_version = {version:UInt32}
                AND arm = 'stable'
            GROUP BY trajectory_id
            HAVING min(at) > {since:DateTime64(3)} AND min(at) <= {until:DateTime64(3)}
            ORDER BY min(at) DESC
            LIMIT {limit:UInt32}
        )
        GROUP BY trajectory_id, event_id
    )
)
WHERE dateDiff('second', began, called) <= {within_s:Float64}
GROUP BY trajectory_id
ORDER BY min(began) DESC
"""
"""What trajectories cost, the newest ones. They are found by the projection `by_storing`, and read by their ids."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A pruned job: its request and its last status."""

    request: Row
    last: Row | None


class PolicyHistory:
    """Queries by ids, a bounded number at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def trajectories(self, role: str, ids: Sequence[str]) -> dict[str, Row]:
        """Stored trajectories by id."""
        return {row["trajectory_id"]: row for row in await self._rows_by_ids(_TRAJECTORIES, role, ids)}

    async def rewards(self, role: str, ids: Sequence[str], until: datetime) -> dict[str, Row]:
        """Each trajectory's newest reward of those stored by then, by trajectory id."""
        return {row["trajectory_id"]: row for row in await self._rows_by_ids(_REWARDS, role, ids, until=until)}

    async def feedback(self, role: str, ids: Sequence[str], until: datetime) -> list[Row]:
        """How often each rater gave each kind of feedback that was stored by then; one combination may come several
        times.
        """
        return await self._rows_by_ids(_FEEDBACK, role, ids, until=until)

    async def preferences(self, role: str, ids: Sequence[str]) -> dict[str, Row]:
        """Stored preferences by id."""
        return {row["preference_id"]: row for row in await self._rows_by_ids(_PREFERENCES, role, ids)}

    async def announcements(self, role: str, version: int) -> list[Row]:
        """The deployer's announcements about a policy, oldest first."""
        return await self._warehouse.rows(_ANNOUNCEMENTS, {"role": role, "version": version})

    async def pruned_job(self, role: str, job_id: str) -> PastJob | None:
        """A job that is not kept any more; None when the history does not have its request either."""
        requests = await self._warehouse.rows(_REQUEST, {"role": role, "job": job_id})
        statuses = await self._warehouse.rows(_STATUS, {"job": job_id})
        return PastJob(requests[0], statuses[0] if statuses else None) if requests else None

    async def outcome_times(
        self, role: str, version: int, *, since: datetime, until: datetime, within_s: float, limit: int
    ) -> list[float]:
        """Seconds from the start of a trajectory that a policy answered to its first known outcome, newest first.

        Counts trajectories that started between `since` and `until`, and outcomes that took at most `within_s`.
        """
        bounds = {"since": since, "until": until, "within_s": within_s, "limit": limit}
        rows = await self._warehouse.rows(_OUTCOME_TIMES, {"role": role, "version": version, **bounds})
        return [float(row["seconds"]) for row in rows]

    async def trajectory_costs(
        self, role: str, version: int, *, since: datetime, until: datetime, within_s: float, limit: int
    ) -> list[float | None]:
        """What trajectories that a policy answered cost, newest first; None for one with a call without a price.

        Counts trajectories that started between `since` and `until`, and their calls of the first `within_s`. A failed
        call without a price costs nothing.
        """
        bounds = {"since": since, "until": until, "within_s": within_s, "limit": limit}
        rows = await self._warehouse.rows(_COSTS, {"role": role, "version": version, **bounds})
        return [None if row["cost"] is None else float(row["cost"]) for row in rows]

    async def _rows_by_ids(self, sql: str, role: str, ids: Sequence[str], **bounds: datetime) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(ids), IDS_PER_QUERY):
            part = list(ids[start : start + IDS_PER_QUERY])
            rows.extend(await self._warehouse.rows(sql, {"role": role, "ids": part, **bounds}))
        return rows
