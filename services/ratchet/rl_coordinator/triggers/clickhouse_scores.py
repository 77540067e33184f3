"""Rewards of a policy before and since an instant, from the history."""

from __future__ import annotations

from datetime import datetime

from ratchet.core.stores.history import latest_rewards
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.rl_coordinator.triggers.domain import Comparison, Sample, compare

_SCORES = f"""
SELECT
    countIf(recent) AS recent_n, countIf(NOT recent) AS before_n,
    avgIf(total, recent) AS recent_mean, avgIf(total, NOT recent) AS before_mean,
    varPopIf(total, recent) AS recent_variance, varPopIf(total, NOT recent) AS before_variance
FROM (
    SELECT avg(r.total) AS total, t.ended_at >= {{since:DateTime64(3)}} AS recent
    FROM (
        SELECT trajectory_id, ended_at, coalesce(group_key, task_id) AS task FROM trajectories FINAL
        WHERE role = {{role:String}} AND policy_version = {{version:UInt32}} AND ended_at >= {{from:DateTime64(3)}}
            AND arm IN ('stable', 'canary')
    ) AS t
    INNER JOIN {latest_rewards("total", "confidence")} AS r ON r.trajectory_id = t.trajectory_id
    WHERE r.confidence > 0 AND isFinite(r.total)
    GROUP BY t.task, recent
)
"""  # noqa: S608 - all parts are ours
"""A task counts once on each side, with the mean of its tries: eight tries of one task say little more than one."""


class Scores:
    """Compares what a policy's tasks were worth."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def compared(self, role: str, version: int, *, begin: datetime, since: datetime) -> Comparison:
        """The rewards of a version between `begin` and `since` against those after it. Pinned calls count on no side,
        and neither does a reward for which nothing was known."""
        bounds = {"role": role, "version": version, "from": begin, "since": since}
        (row,) = await self._warehouse.rows(_SCORES, bounds)
        return compare(_sample(row, "before"), _sample(row, "recent"))


def _sample(row: Row, part: str) -> Sample:
    n = int(row[f"{part}_n"])
    return Sample(n, float(row[f"{part}_mean"]), float(row[f"{part}_variance"])) if n else Sample(0, 0.0, 0.0)
