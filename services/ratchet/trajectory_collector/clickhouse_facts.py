"""Facts in ClickHouse. Lookups use the columns that order a table, so that their cost does not grow with history."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.bus.received import Received
from ratchet.contract import Trajectory, Turn, decode
from ratchet.stores.warehouse import Warehouse
from ratchet.trajectory_collector.domain import ASSEMBLED, Report, report_of
from ratchet.trajectory_collector.rows import Row, Table

BLOCK_BYTES = 16 * 1024 * 1024
"""Bodies in one insert. A body that is larger is inserted alone."""

_IDLE = """
WITH heard AS (
    SELECT role, trajectory_id, max(at) AS newest, max(ingested_at) AS heard_at
    FROM turns
    WHERE ingested_at >= {since:DateTime64(3)}
    GROUP BY role, trajectory_id
    HAVING heard_at <= {before:DateTime64(3)}
        AND (heard_at, role, trajectory_id) > ({since:DateTime64(3)}, {role:String}, {id:String})
    ORDER BY heard_at, role, trajectory_id
    LIMIT {limit:UInt32}
)
SELECT h.role AS role, h.trajectory_id AS trajectory_id, h.heard_at AS heard_at,
    t.trajectory_id = '' OR (NOT t.final AND h.newest > t.reported_until) AS unreported
FROM heard AS h
LEFT JOIN (
    SELECT
        role,
        trajectory_id,
        max(ended_at) AS reported_until,
        countIf(source != {assembled:String} OR isNotNull(outcome)) > 0 AS final
    FROM trajectories
    WHERE (role, trajectory_id) IN (SELECT role, trajectory_id FROM heard)
    GROUP BY role, trajectory_id
) AS t ON t.role = h.role AND t.trajectory_id = h.trajectory_id
ORDER BY h.heard_at, h.role, h.trajectory_id
"""
"""Trajectories whose turns fell silent after a place in their order, and whether they are unreported: without a row, or
with one that was assembled from fewer turns. The query reads only turns that were stored after that place."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a message: the life of its stream, and the sequence."""

    incarnation: str
    sequence: int


@dataclass(frozen=True, slots=True, order=True)
class Silence:
    """The last turn of a trajectory in a role, as a place in the order of those that fell silent."""

    heard_at: datetime
    role: str = ""
    trajectory_id: str = ""


class Facts:
    """Reads and writes the fact tables."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def known(self, table: Table, batch: Sequence[Received[Any]]) -> dict[str, Place]:
        """By event id, the place under which each message of a batch that is stored was stored first."""
        where, parameters = _where(table, batch)
        rows = await self._warehouse.rows(
            "SELECT event_id, argMin((incarnation, sequence), ingested_at) AS place"  # noqa: S608 - our own table map
            f" FROM {table.name} WHERE {where} GROUP BY event_id",
            parameters,
        )
        return {row["event_id"]: Place(*row["place"]) for row in rows}

    async def reports(self, table: Table, batch: Sequence[Received[Any]]) -> dict[str, Report]:
        """By event id, how the stored trajectories of these events were reported."""
        where, parameters = _where(table, batch)
        rows = await self._warehouse.rows(
            f"SELECT event_id, body, retold_by FROM {table.name} FINAL WHERE {where}",  # noqa: S608 - our own table map
            parameters,
        )
        return {row["event_id"]: report_of(decode(row["body"].encode(), Trajectory), row["retold_by"]) for row in rows}

    async def insert(self, table: str, rows: Sequence[Row], *, again: bool = False) -> None:
        """Insert rows in blocks of bounded size; inserting the same events again soon changes nothing.

        `again`: their rows are gone although they were inserted, perhaps a moment ago, so these are always written.
        """
        blocks: list[list[Row]] = []
        size = 0
        for row in rows:
            size += len(row["body"])
            if not blocks or size > BLOCK_BYTES:
                blocks.append([])
                size = len(row["body"])
            blocks[-1].append(row)
        for block in blocks:
            # Of the whole ordered list: first and last alone would mistake one regrouped block for another.
            ids = ",".join(row["event_id"] for row in block)
            token = None if again else hashlib.sha256(f"{table}:{ids}".encode()).hexdigest()
            await self._warehouse.insert(table, block, token=token)

    async def replace(self, table: str, row: Row, by: int) -> None:
        """Replace the stored row by a newer version of it, which came with the message `by`."""
        await self._warehouse.insert(table, [row | {"retold_by": by}], token=None)

    async def idle(self, after: Silence, before: datetime, limit: int) -> list[tuple[Silence, bool]]:
        """Trajectories that fell silent `after` a place and until `before`, oldest first; true: still unreported."""
        window = {
            "since": after.heard_at,
            "role": after.role,
            "id": after.trajectory_id,
            "before": before,
            "limit": limit,
            "assembled": ASSEMBLED,
        }
        rows = await self._warehouse.rows(_IDLE, window)
        return [(Silence(row["heard_at"], row["role"], row["trajectory_id"]), bool(row["unreported"])) for row in rows]

    async def turns(self, role: str, trajectory_id: str) -> list[Turn]:
        """The stored turns of a trajectory in a role, oldest first."""
        rows = await self._warehouse.rows(
            "SELECT body FROM turns FINAL WHERE role = {role:String} AND trajectory_id = {id:String}"
            " ORDER BY turn_index, attempt",
            {"role": role, "id": trajectory_id},
        )
        return [decode(row["body"].encode(), Turn) for row in rows]


def _where(table: Table, batch: Sequence[Received[Any]]) -> tuple[str, Mapping[str, Any]]:
    """The condition that a row belongs to the batch, by primary key first."""
    keys = sorted({table.key_of(received.message) for received in batch})
    kind = f"Tuple({', '.join(['String'] * len(table.key))})"
    where = f"({', '.join(table.key)},) IN {{keys:Array({kind})}} AND event_id IN {{ids:Array(String)}}"
    return where, {"keys": keys, "ids": sorted({received.event_id for received in batch})}
