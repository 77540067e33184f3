"""What ClickHouse holds about trajectories: themselves, their rewards, and what people said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from ratchet.bus.message import Message
from ratchet.core.contract import Feedback, Reward, Trajectory, decode
from ratchet.core.stores.history import History
from ratchet.core.stores.warehouse import Warehouse

M = TypeVar("M", bound=Message)

Key = tuple[str, str]
"""Role and trajectory id. Feedback under another role is not about this trajectory: permissions are given by role."""


class Facts:
    """Reads. A query sees everything that was stored before it began."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def stored(self, table: str, events: Mapping[str, Key]) -> set[str]:
        """Which of these events are stored in `table`. What is read does not grow with the table."""
        rows = await self._warehouse.rows(
            f"SELECT DISTINCT event_id FROM {table} WHERE (role, trajectory_id) IN"  # noqa: S608 - our own table names
            " {keys:Array(Tuple(String, String))} AND event_id IN {ids:Array(String)}",
            {"keys": sorted(set(events.values())), "ids": sorted(events)},
        )
        return {row["event_id"] for row in rows}

    async def dead(self, stream: str, sequences: Collection[int]) -> set[int]:
        """Which of these messages will never be stored: the ledger says that they are dead."""
        outcomes = await History(self._warehouse).outcomes(stream, sequences)
        return {sequence for sequence, outcome in outcomes.items() if outcome == "dead"}

    async def trajectories(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Trajectory]]:
        """The stored trajectories."""
        return await self._messages("trajectories", Trajectory, keys)

    async def places(self, keys: Iterable[Key]) -> Mapping[Key, int]:
        """The sequences under which trajectories were first stored."""
        rows = await self._warehouse.rows(
            "SELECT role, trajectory_id, min(sequence) AS sequence FROM trajectories"
            " WHERE (role, trajectory_id) IN {keys:Array(Tuple(String, String))} GROUP BY role, trajectory_id",
            {"keys": sorted(set(keys))},
        )
        return {(row["role"], row["trajectory_id"]): row["sequence"] for row in rows}

    async def rewards(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Reward]]:
        """All revisions under all reward functions."""
        return await self._messages("rewards", Reward, keys)

    async def feedback(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Feedback]]:
        """All feedback."""
        return await self._messages("feedback", Feedback, keys)

    async def _messages(self, table: str, kind: type[M], keys: Iterable[Key]) -> Mapping[Key, Sequence[M]]:
        rows = await self._warehouse.rows(
            f"SELECT role, trajectory_id, body FROM {table} FINAL WHERE (role, trajectory_id) IN"  # noqa: S608 - our own table names
            " {keys:Array(Tuple(String, String))} ORDER BY ingested_at, sequence",
            {"keys": sorted(set(keys))},
        )
        by_trajectory: defaultdict[Key, list[M]] = defaultdict(list)
        for row in rows:
            by_trajectory[row["role"], row["trajectory_id"]].append(decode(row["body"].encode(), kind))
        return by_trajectory
