"""The history in ClickHouse: the queries that more than one service asks, stated once.

A fact table holds a message once per event id, but a trajectory may be rewarded several times (revisions, further
reward functions) and may have many turns. This module defines which reward is "its reward" and which arms are "its
arms", as subqueries that services join to their own. Parameters of a query are ClickHouse's own: `{role:String}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ratchet.bus.message import Message, decode
from ratchet.core.contract.http.console import LedgerOut

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

K = TypeVar("K")
M = TypeVar("M", bound=Message)

NEWEST = "(w.at, w.revision)"
"""The order of the rewards of one trajectory: the newest one is its reward, whichever function computed it."""
REWARD_COLUMNS: Mapping[str, str] = {
    "event_id": "w.event_id",
    "function": "concat(w.function_name, ' ', w.function_version)",
    "revision": "w.revision",
    "total": "w.total",
    "components": "w.components",
    "confidence": "coalesce(w.confidence, 1)",
    "at": "w.at",
    "body": "w.body",
    "is_rewarded": "true",
}
"""Columns of a trajectory's reward. `confidence`: 0 when nothing was known to reward. `is_rewarded`: after a left join,
false for a trajectory without a reward."""
OF_ROLE = "role = {role:String}"
IDS_PER_QUERY = 250
"""The ids are part of a query's url, whose length is bounded."""


def latest_rewards(*columns: str, where: str = OF_ROLE) -> str:
    """A subquery: role, trajectory_id and `columns` of `REWARD_COLUMNS`, one row for each trajectory with a reward.

    `where`: the condition that a reward must fulfil to count; every reward counts when it is empty.
    """
    picked = "".join(f",\n        argMax({REWARD_COLUMNS[name]}, {NEWEST}) AS {name}" for name in columns)
    return f"""(
    SELECT
        w.role AS role,
        w.trajectory_id AS trajectory_id{picked}
    FROM rewards AS w{_where("w", where)}
    GROUP BY w.role, w.trajectory_id
)"""  # noqa: S608 - our own names


def calls(where: str = OF_ROLE, **columns: str) -> str:
    """A subquery: role, trajectory_id and `arms` (those of its gateway calls) of each trajectory with calls.

    `columns`: further ones, name -> aggregate over rows `c` of `turns`.
    """
    further = "".join(f", {value} AS {name}" for name, value in columns.items())
    return f"""(
    SELECT c.role AS role, c.trajectory_id AS trajectory_id, groupUniqArray(toString(c.arm)) AS arms{further}
    FROM turns AS c{_where("c", where)}
    GROUP BY c.role, c.trajectory_id
)"""  # noqa: S608 - our own names


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about a rollout, as the deployer published it."""

    rollout_id: str
    decision: int
    """Its number within the rollout, from 0."""
    at: datetime
    from_version: int | None
    to_version: int
    stage: int
    weight: float
    verdict: str
    reason: str
    actor: str


class History:
    """Reads messages as they were stored, and the outcomes that the ledger recorded."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def decisions(self, role: str, limit: int) -> list[Decision]:
        """The newest decisions about a role's rollouts."""
        sql = f"""
            SELECT {", ".join(Decision.__struct_fields__)}
            FROM (SELECT * EXCEPT body FROM rollouts FINAL)
            WHERE {OF_ROLE} ORDER BY at DESC, rollout_id, decision DESC LIMIT {{limit:UInt32}}
        """  # noqa: S608 - our own names
        return [Decision(**row) for row in await self._warehouse.rows(sql, {"role": role, "limit": limit})]

    async def messages(self, table: str, kind: type[M], role: str, ids: Iterable[str]) -> list[M]:
        """The messages about these trajectories of a role, in any order; in `preferences` and `workflow_executions`,
        those with these ids.

        For a trajectory that was reported again, the newest report.
        """
        key = {"preferences": "preference_id", "workflow_executions": "workflow_id"}.get(table, "trajectory_id")
        sql = f"SELECT body FROM {table} FINAL WHERE {OF_ROLE} AND {key} IN {{ids:Array(String)}}"  # noqa: S608 - our own names
        messages: list[M] = []
        for part in parts(sorted(set(ids))):
            rows = await self._warehouse.rows(sql, {"role": role, "ids": part})
            messages += [decode(row["body"].encode(), kind) for row in rows]
        return messages

    async def outcomes(self, stream: str, sequences: Collection[int]) -> dict[int, str]:
        """The outcome of each of these messages that the ledger has settled, in the stream's present life.

        A broker that was restored gives its sequences out again; the ledger tells the lives apart.
        """
        sql = """
            SELECT sequence, toString(argMax(outcome, at)) AS outcome FROM ledger_entries
            WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)} AND generation = (
                SELECT argMax(concat(created, '/', toString(number)), at) FROM stream_generations
                WHERE stream = {stream:String}
            )
            GROUP BY sequence
        """
        rows = await self._warehouse.rows(sql, {"stream": stream, "sequences": sorted(sequences)})
        return {row["sequence"]: row["outcome"] for row in rows}

    async def roles(self) -> list[str]:
        """Every role that has trajectories, in order."""
        rows = await self._warehouse.rows("SELECT DISTINCT role FROM trajectories ORDER BY role")
        return [row["role"] for row in rows]

    async def roles_of(self, ids: Collection[str]) -> dict[str, str]:
        """The role of each of these trajectories that is stored."""
        sql = """
            SELECT trajectory_id, any(role) AS role FROM trajectories
            WHERE trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id
        """
        roles: dict[str, str] = {}
        for part in parts(sorted(ids)):
            roles |= {row["trajectory_id"]: row["role"] for row in await self._warehouse.rows(sql, {"ids": part})}
        return roles


def parts(keys: Sequence[K]) -> Iterator[list[K]]:
    """As many as one query may name."""
    return (list(keys[start : start + IDS_PER_QUERY]) for start in range(0, len(keys), IDS_PER_QUERY))


def _where(alias: str, condition: str) -> str:
    """The clause, on the columns of `alias`: a result's alias may have a column's name."""
    parts = [f"{alias}.{part}" for part in condition.split(" AND ") if part]
    return f" WHERE {' AND '.join(parts)}" if parts else ""


if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse


async def ledger_balance(warehouse: Warehouse) -> list[LedgerOut]:
    """One for each stream and consumer, as of the last audit. Raises `WarehouseUnavailable`."""
    rows = await warehouse.rows("SELECT * FROM ledger_balance ORDER BY stream, consumer")
    return msgspec.convert(rows, list[LedgerOut])
