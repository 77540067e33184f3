"""The last hour in ClickHouse, minute by minute, and the trajectories that go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.contract.http.console import LedgerOut, MinuteOut
from ratchet.core.stores.history import ledger_balance
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
    SELECT toStartOfMinute(ingested_at) AS minute, 0, 0, uniqExact(role, trajectory_id, event_id), 0, NULL
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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What ClickHouse says of the loop."""

    minutes: Sequence[MinuteOut] = ()
    """The last `MINUTES`, oldest first; the last one is not over."""
    open_trajectories: int | None = None
    """How many have a call in the last ten minutes, and no end that is stored."""
    ledger: Sequence[LedgerOut] = ()
    """The balance of every stream and consumer."""


async def history_of(warehouse: Warehouse, now: datetime) -> History:
    """All of it, read at the same time. Raises `WarehouseUnavailable`."""
    since = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    stored, (still_open,), ledger = await asyncio.gather(
        warehouse.rows(_MINUTES, {"since": since}),
        warehouse.rows(_OPEN, {"recent": now - OPEN_FOR}),
        ledger_balance(warehouse),
    )
    rows: dict[datetime, Row] = {row["minute"]: row for row in stored}
    counts = ("calls", "failed_calls", "trajectories", "rewards")
    minutes = [
        MinuteOut(
            at=at,
            **{name: rows.get(at, {}).get(name, 0) for name in counts},
            mean_reward=rows.get(at, {}).get("mean_reward"),
        )
        for at in (since + timedelta(minutes=k) for k in range(MINUTES))
    ]
    return History(minutes=minutes, open_trajectories=still_open["open"], ledger=ledger)
