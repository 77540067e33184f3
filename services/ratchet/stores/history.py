"""The history in ClickHouse: what more than one service asks of it, stated once.

A fact table holds a message once per event id, but a trajectory may be rewarded several times (revisions, further
reward functions) and may have many turns. What "its reward" and "its arms" are is said here, as subqueries that the
services join to what they select. Parameters of a query are ClickHouse's own: `{role:String}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ratchet.bus.message import Message, decode

if TYPE_CHECKING:
    from ratchet.stores.warehouse import Warehouse

M = TypeVar("M", bound=Message)

NEWEST = "(w.at, w.revision)"
"""The order of the rewards of one trajectory: the newest one is its reward, whichever function computed it."""
OF_ROLE = "role = {role:String}"
IDS_PER_QUERY = 250
"""Ids travel in the url of a query."""


def latest_rewards(where: str = OF_ROLE, **columns: str) -> str:
    """A subquery: role, trajectory_id, and `columns` of the reward of each trajectory that has one.

    `columns`: name -> expression over a row `w` of `rewards`. `where`: which rewards count.
    """
    picked = "".join(f", argMax({value}, {NEWEST}) AS {name}" for name, value in columns.items())
    return f"""(
    SELECT w.role AS role, w.trajectory_id AS trajectory_id{picked}
    FROM rewards AS w WHERE {_of("w", where)} GROUP BY w.role, w.trajectory_id
)"""  # noqa: S608 - our own names


def calls(where: str = OF_ROLE, **columns: str) -> str:
    """A subquery: role, trajectory_id and `arms` (those of its gateway calls) of each trajectory with calls.

    `columns`: further ones, name -> aggregate over rows `c` of `turns`.
    """
    further = "".join(f", {value} AS {name}" for name, value in columns.items())
    return f"""(
    SELECT c.role AS role, c.trajectory_id AS trajectory_id, groupUniqArray(toString(c.arm)) AS arms{further}
    FROM turns AS c WHERE {_of("c", where)} GROUP BY c.role, c.trajectory_id
)"""  # noqa: S608 - our own names


class History:
    """Messages as they were stored."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def messages(self, table: str, kind: type[M], role: str, ids: Iterable[str]) -> list[M]:
        """The messages about these trajectories of a role (in `preferences`: with these preference ids), in no order.

        Of a trajectory that was reported again, the newest report.
        """
        key = "preference_id" if table == "preferences" else "trajectory_id"
        sql = f"SELECT body FROM {table} FINAL WHERE {OF_ROLE} AND {key} IN {{ids:Array(String)}}"  # noqa: S608 - our own names
        found: list[M] = []
        for part in _parts(sorted(set(ids))):
            rows = await self._warehouse.rows(sql, {"role": role, "ids": part})
            found += [decode(row["body"].encode(), kind) for row in rows]
        return found

    async def outcomes(self, stream: str, sequences: Collection[int]) -> dict[int, str]:
        """What became of these messages of a stream, as the ledger says; those that are not settled are left out.

        In the present life of the stream: a broker that was restored gives its sequences out again.
        """
        sql = """
            SELECT sequence, any(toString(outcome)) AS outcome FROM ledger_entries
            WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)} AND incarnation = (
                SELECT argMax(concat(created, '/', toString(life)), at) FROM stream_lives WHERE stream = {stream:String}
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
        found: dict[str, str] = {}
        for part in _parts(sorted(ids)):
            found |= {row["trajectory_id"]: row["role"] for row in await self._warehouse.rows(sql, {"ids": part})}
        return found


def _parts(ids: Sequence[str]) -> Iterable[list[str]]:
    return (list(ids[start : start + IDS_PER_QUERY]) for start in range(0, len(ids), IDS_PER_QUERY))


def _of(alias: str, where: str) -> str:
    """A condition on columns as one on those of `alias`: an alias of a result may have a column's name."""
    return " AND ".join(f"{alias}.{condition}" for condition in where.split(" AND "))
