"""Facts and ledger in ClickHouse."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from ratchet.kernel.warehouse import Warehouse
from ratchet.messages import Turn, decode
from ratchet.trajectory_collector.rows import Row


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

    async def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert one block; inserting the same messages again changes nothing."""
        await self._warehouse.insert(table, rows, token=_token(table, [row["sequence"] for row in rows]))

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
