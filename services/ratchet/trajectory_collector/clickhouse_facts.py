"""Facts and ledger in ClickHouse."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.kernel.warehouse import Warehouse
from ratchet.messages import Turn, decode
from ratchet.trajectory_collector.domain import ASSEMBLED, Told
from ratchet.trajectory_collector.rows import Row

_IDLE = """
WITH heard AS (
    SELECT
        trajectory_id,
        argMin(role, at) AS first_role,
        max(at) AS newest,
        max(ingested_at) AS heard_at
    FROM turns
    WHERE ingested_at >= {since:DateTime64(3)}
    GROUP BY trajectory_id
    HAVING heard_at <= {before:DateTime64(3)} AND max(answered)
)
SELECT h.first_role AS role, h.trajectory_id AS trajectory_id
FROM heard AS h
LEFT JOIN (
    SELECT
        trajectory_id,
        max(ended_at) AS told_until,
        countIf(source != {assembled:String} OR isNotNull(outcome)) > 0 AS final
    FROM trajectories
    WHERE trajectory_id IN (SELECT trajectory_id FROM heard)
    GROUP BY trajectory_id
) AS t ON t.trajectory_id = h.trajectory_id
WHERE t.trajectory_id = '' OR (NOT t.final AND h.newest > t.told_until)
ORDER BY h.heard_at, h.trajectory_id
LIMIT {limit:UInt32}
"""
"""Trajectories whose turns fell silent and that nobody told: no row yet, or one assembled from fewer turns."""

_GAPS = """
SELECT previous + 1 AS first, sequence - 1 AS last
FROM (
    SELECT sequence, lagInFrame(sequence, 1, toUInt64(0)) OVER (
        ORDER BY sequence ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    ) AS previous
    FROM (
        SELECT DISTINCT sequence FROM ledger
        WHERE stream = {stream:String} AND consumer = {consumer:String} AND sequence <= {floor:UInt64}
        UNION DISTINCT SELECT toUInt64({floor:UInt64} + 1)
    )
)
WHERE sequence > previous + 1
ORDER BY first
LIMIT 1000
"""
"""What the ledger lacks up to the floor, as ranges."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that the ledger does not account for, both ends included."""

    first: int
    last: int


class Facts:
    """Reads and writes the fact tables and the ledger."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def known(self, table: str, event_ids: Sequence[str]) -> dict[str, int]:
        """The stream sequence under which each already stored event id is known."""
        rows = await self._warehouse.rows(
            f"SELECT event_id, min(sequence) AS sequence FROM {table}"  # noqa: S608 - a name from our own table map
            " WHERE event_id IN {ids:Array(String)} GROUP BY event_id",
            {"ids": list(event_ids)},
        )
        return {row["event_id"]: row["sequence"] for row in rows}

    async def told(self, event_ids: Sequence[str]) -> dict[str, Told]:
        """How the stored trajectories of these events were told."""
        rows = await self._warehouse.rows(
            "SELECT event_id, source, outcome, turn_count, retold_by FROM trajectories FINAL"
            " WHERE event_id IN {ids:Array(String)}",
            {"ids": list(event_ids)},
        )
        return {
            row["event_id"]: Told(row["source"], row["outcome"] is not None, row["turn_count"], row["retold_by"])
            for row in rows
        }

    async def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert one block; inserting the same messages again changes nothing."""
        await self._warehouse.insert(table, rows, token=_token(table, [row["sequence"] for row in rows]))

    async def replace(self, table: str, row: Row, by: int) -> None:
        """Put a newer version of a row in the place of the stored one, because of the message `by`."""
        await self._warehouse.insert(table, [row | {"retold_by": by}], token=_token(f"{table}/retold", [by]))

    async def account(self, stream: str, consumer: str, outcomes: Mapping[int, str], at: datetime) -> None:
        """Write down what became of each sequence of a stream."""
        rows = [
            {"stream": stream, "consumer": consumer, "sequence": sequence, "outcome": outcome, "at": at}
            for sequence, outcome in outcomes.items()
        ]
        await self._warehouse.insert("ledger", rows, token=_token(f"{stream}/{consumer}", sorted(outcomes)))

    async def accounted_up_to(self, stream: str, consumer: str, sequence: int) -> int:
        """How many sequences from 1 to `sequence` the ledger accounts for."""
        rows = await self._warehouse.rows(
            "SELECT uniqExact(sequence) AS n FROM ledger"
            " WHERE stream = {stream:String} AND consumer = {consumer:String} AND sequence <= {sequence:UInt64}",
            {"stream": stream, "consumer": consumer, "sequence": sequence},
        )
        return int(rows[0]["n"])

    async def gaps(self, stream: str, consumer: str, floor: int) -> list[Gap]:
        """The ranges up to `floor` that the ledger lacks, oldest first, the first thousand of them."""
        rows = await self._warehouse.rows(_GAPS, {"stream": stream, "consumer": consumer, "floor": floor})
        return [Gap(row["first"], row["last"]) for row in rows]

    async def idle(self, *, since: datetime, before: datetime, limit: int) -> list[tuple[str, str]]:
        """(role, trajectory id) of what has turns heard after `since`, none after `before`, and is not told yet."""
        window = {"since": since, "before": before, "limit": limit, "assembled": ASSEMBLED}
        return [(row["role"], row["trajectory_id"]) for row in await self._warehouse.rows(_IDLE, window)]

    async def turns(self, role: str, trajectory_id: str) -> list[Turn]:
        """The stored turns of a trajectory, oldest first."""
        rows = await self._warehouse.rows(
            "SELECT body FROM turns FINAL WHERE role = {role:String} AND trajectory_id = {id:String}"
            " ORDER BY turn_index, attempt",
            {"role": role, "id": trajectory_id},
        )
        return [decode(row["body"].encode(), Turn) for row in rows]


def _token(what: str, sequences: Sequence[int]) -> str:
    """A hash of the ordered list: first and last alone would mistake one regrouped block for another."""
    return hashlib.sha256(f"{what}:{','.join(map(str, sequences))}".encode()).hexdigest()
