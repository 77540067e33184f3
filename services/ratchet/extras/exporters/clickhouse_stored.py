"""What is stored, page by page: message bodies newest first, and the newest rewards of trajectories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratchet.core.contract import Reward, decode
from ratchet.core.stores.history import latest_rewards
from ratchet.extras.exporters.base import Kind, Selection

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse
    from ratchet.extras.exporters.archived import ArchivedRows

_UNANSWERED = """
SELECT trajectory_id
FROM turns
WHERE ({role:String} = '' OR role = {role:String})
GROUP BY trajectory_id
HAVING NOT max(answered)
    AND max(at) >= {since:DateTime64(3)} AND max(at) < {until:DateTime64(3)}
    AND max(at) < now64(3) - toIntervalSecond({silent_s:UInt32})
    AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories)
ORDER BY max(at) DESC, trajectory_id
LIMIT {limit:UInt64}
"""
"""Runs without an answered call, newest first: each failed, or its agent went away before."""
_ENDS = """
SELECT trajectory_id, argMin(body, at) AS first, argMax(body, at) AS last
FROM turns
WHERE ({role:String} = '' OR role = {role:String}) AND trajectory_id IN {ids:Array(String)}
GROUP BY trajectory_id
ORDER BY indexOf({ids:Array(String)}, trajectory_id)
"""
"""First and last turn of runs, in the order of the ids."""
EVER = datetime.fromtimestamp(0, UTC), datetime(2100, 1, 1, tzinfo=UTC)
SILENT_S = 600
"""A run without an answer may still go on until it was silent for as long as the collector waits for an end."""
ALL = 2**63
"""A limit above every number of rows."""
PAGE = 500
"""Rows that are read, made into records and written together."""


class Stored:
    """Reads; a page begins where the one before ended, so what is stored meanwhile moves nothing."""

    def __init__(self, warehouse: Warehouse, archived: ArchivedRows | None = None) -> None:
        """`archived`: what an export takes beside."""
        self._warehouse = warehouse
        self.archived = archived

    async def count(self, kind: Kind, selection: Selection) -> int:
        """How many rows are chosen, the limit aside."""
        where, values = _conditions(kind, selection)
        sql = f"SELECT count() AS n FROM {kind.table} FINAL WHERE {where}"  # noqa: S608 - our own names
        return int((await self._warehouse.rows(sql, values))[0]["n"])

    async def pages(self, kind: Kind, selection: Selection) -> AsyncIterator[list[Row]]:
        """Rows with `role`, `trajectory_id` and `body`, newest first, up to the limit."""
        chosen, parameters = _conditions(kind, selection)
        at = f"toUnixTimestamp64Milli({kind.time})"
        left, where = selection.limit, chosen
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = await self._warehouse.rows(
                f"SELECT role, trajectory_id, {kind.key} AS row_key, {at} AS at_ms, body FROM {kind.table} FINAL"  # noqa: S608 - our own names
                f" WHERE {where} ORDER BY at_ms DESC, row_key DESC LIMIT {size}",
                parameters,
            )
            if not page:
                return
            yield page
            where = f"{chosen} AND ({at}, {kind.key}) < ({{after_ms:Int64}}, {{after_key:String}})"
            parameters |= {"after_ms": page[-1]["at_ms"], "after_key": page[-1]["row_key"]}
            left = None if left is None else left - len(page)

    async def unanswered(self, selection: Selection) -> list[str]:
        """The ids of the chosen runs without an answered call, newest first, up to the limit.

        All at once, because a run has no place in the order until all its turns were looked at: pages by the newest
        turn would read every turn again for each page.
        """
        asked = {
            "role": selection.role or "",
            "since": selection.since or EVER[0],
            "until": selection.until or EVER[1],
            "limit": ALL if selection.limit is None else selection.limit,
            "silent_s": SILENT_S,
        }
        return [row["trajectory_id"] for row in await self._warehouse.rows(_UNANSWERED, asked)]

    async def turns(self, selection: Selection, runs: Sequence[str]) -> AsyncIterator[list[Row]]:
        """`first` and `last` turn of each run, page by page in the order of the ids."""
        for start in range(0, len(runs), PAGE):
            ids = list(runs[start : start + PAGE])
            yield await self._warehouse.rows(_ENDS, {"role": selection.role or "", "ids": ids})

    async def rewards(self, rows: Sequence[Row]) -> dict[tuple[str, str], Reward]:
        """The newest reward of each trajectory among `rows`, by role and id."""
        newest = await self._warehouse.rows(
            latest_rewards("body", where="role IN {roles:Array(String)} AND trajectory_id IN {ids:Array(String)}"),
            {"roles": sorted({row["role"] for row in rows}), "ids": sorted({row["trajectory_id"] for row in rows})},
        )
        return {(row["role"], row["trajectory_id"]): decode(row["body"].encode(), Reward) for row in newest}


def _conditions(kind: Kind, selection: Selection) -> tuple[str, dict[str, Any]]:
    """The condition on a row, and its parameters (`Any`: each has its own type)."""
    asked: list[tuple[str, str, object]] = [
        ("role", "role = {role:String}", selection.role),
        ("since", f"{kind.time} >= {{since:DateTime64(3)}}", selection.since),
        ("until", f"{kind.time} < {{until:DateTime64(3)}}", selection.until),
        ("min_reward", kind.worth, selection.min_reward),
    ]
    given = [(name, condition, value) for name, condition, value in asked if value is not None]
    where = " AND ".join(condition for _, condition, _ in given) or "1"
    return where, {name: value for name, _, value in given}
