"""The last hour in ClickHouse, minute by minute, and the trajectories that go on."""

from __future__ import annotations

from datetime import datetime, timedelta

from ratchet.core.contract.http.console import LedgerOut, MinuteOut
from ratchet.core.stores.ledger import ledger_balance
from ratchet.core.stores.warehouse import Row, Warehouse

MINUTES = 60
OPEN_FOR = timedelta(minutes=10)
"""The collector assembles a trajectory that has been silent for longer, whether it has ended or not."""

_SINCE = "ingested_at >= {since:DateTime64(3, 'UTC')}"
_RECENT = "ingested_at >= {recent:DateTime64(3, 'UTC')}"
_MINUTES = f"""
SELECT minute, sum(n_calls) AS calls, sum(n_failed) AS failed_calls, sum(n_trajectories) AS trajectories,
    sum(n_rewards) AS rewards, max(mean) AS mean_reward
FROM (
    SELECT toStartOfMinute(c.ingested_at) AS minute, uniqExact(c.event_id) AS n_calls,
        uniqExactIf(c.event_id, c.failed) AS n_failed, 0 AS n_trajectories, 0 AS n_rewards,
        CAST(NULL, 'Nullable(Float64)') AS mean
    FROM calls AS c
    WHERE c.{_SINCE} AND toStartOfHour(c.at) >= toStartOfHour({{since:DateTime64(3, 'UTC')}} - INTERVAL 1 HOUR)
    GROUP BY minute
    UNION ALL
    SELECT toStartOfMinute(ingested_at) AS minute, 0, 0, uniqExact(event_id), 0, NULL
    FROM trajectories WHERE {_SINCE} GROUP BY minute
    UNION ALL
    SELECT toStartOfMinute(ingested_at) AS minute, 0, 0, 0, uniqExact(role, trajectory_id, function_name, revision),
        avgOrNullIf(total, coalesce(confidence, 1) > 0)
    FROM rewards WHERE {_SINCE} GROUP BY minute
)
GROUP BY minute
"""  # noqa: S608 - our own names
"""The hour of a call is in the table's order, and a call is stored within seconds. The others have their projections by
the time of storing: of a million calls over a month 10 granules are read."""
_OPEN = f"""
SELECT uniqExact(role, trajectory_id) AS open FROM turns
WHERE {_RECENT} AND (role, trajectory_id) NOT IN (SELECT role, recorded_as FROM trajectories WHERE {_RECENT})
"""  # noqa: S608 - our own names


class LoopHistory:
    """What ClickHouse says of the loop. Raises `WarehouseUnavailable`."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def minutes(self, now: datetime) -> list[MinuteOut]:
        """The last `MINUTES`, oldest first; the last one is not over."""
        last = now.replace(second=0, microsecond=0)
        since = last - timedelta(minutes=MINUTES - 1)
        rows = {row["minute"]: row for row in await self._warehouse.rows(_MINUTES, {"since": since})}
        return [_minute(since + timedelta(minutes=k), rows) for k in range(MINUTES)]

    async def open_trajectories(self, now: datetime) -> int:
        """How many have a call in the last ten minutes, and no end that is stored."""
        (row,) = await self._warehouse.rows(_OPEN, {"recent": now - OPEN_FOR})
        return row["open"]

    async def ledger(self) -> list[LedgerOut]:
        """The balance of every stream and consumer."""
        return await ledger_balance(self._warehouse)


def _minute(at: datetime, rows: dict[datetime, Row]) -> MinuteOut:
    row = rows.get(at, {})
    return MinuteOut(
        at=at,
        calls=row.get("calls", 0),
        failed_calls=row.get("failed_calls", 0),
        trajectories=row.get("trajectories", 0),
        rewards=row.get("rewards", 0),
        mean_reward=row.get("mean_reward"),
    )
