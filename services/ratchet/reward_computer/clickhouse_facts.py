"""What ClickHouse holds about trajectories: themselves, their rewards, and what people said."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from ratchet.kernel.warehouse import Warehouse
from ratchet.messages import Feedback, Reward, Trajectory, decode
from ratchet.messages.base import Message

M = TypeVar("M", bound=Message)

WAIT_S, POLL_S = 1.0, 0.05

Key = tuple[str, str]
"""Role and trajectory id. Feedback under another role is not about this trajectory: permissions are given by role."""


class Facts:
    """Reads. A query sees everything that was stored before it began."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def wait_until_stored(self, table: str, event_ids: Collection[str]) -> None:
        """Return once all of these events are stored, or after `WAIT_S`: the collector is usually that fast."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while len(await self.stored(table, event_ids)) < len(event_ids) and loop.time() < until:  # noqa: ASYNC110 - no event
            await asyncio.sleep(POLL_S)

    async def stored(self, table: str, event_ids: Iterable[str]) -> set[str]:
        """Which of these events are stored in `table`."""
        rows = await self._warehouse.rows(
            f"SELECT DISTINCT event_id FROM {table} WHERE event_id IN {{ids:Array(String)}}",  # noqa: S608 - our own table names
            {"ids": list(event_ids)},
        )
        return {row["event_id"] for row in rows}

    async def dead(self, stream: str, sequences: Collection[int]) -> set[int]:
        """Which of these messages will never be stored: the ledger says that they are dead."""
        rows = await self._warehouse.rows(
            "SELECT DISTINCT sequence FROM ledger"
            " WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)} AND outcome = 'dead'",
            {"stream": stream, "sequences": list(sequences)},
        )
        return {row["sequence"] for row in rows}

    async def trajectories(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Trajectory]]:
        """The stored trajectories."""
        return await self._messages("trajectories", Trajectory, keys)

    async def rewards(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Reward]]:
        """All revisions under all reward functions."""
        return await self._messages("rewards", Reward, keys)

    async def feedback(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Feedback]]:
        """All feedback."""
        return await self._messages("feedback", Feedback, keys)

    async def _messages(self, table: str, kind: type[M], keys: Iterable[Key]) -> Mapping[Key, Sequence[M]]:
        wanted = set(keys)
        rows = await self._warehouse.rows(
            f"SELECT role, trajectory_id, body FROM {table} FINAL"  # noqa: S608 - our own table names
            " WHERE role IN {roles:Array(String)} AND trajectory_id IN {ids:Array(String)} ORDER BY sequence",
            {"roles": sorted({role for role, _ in wanted}), "ids": sorted({name for _, name in wanted})},
        )
        found: defaultdict[Key, list[M]] = defaultdict(list)
        for row in rows:
            key = (row["role"], row["trajectory_id"])
            if key in wanted:
                found[key].append(decode(row["body"].encode(), kind))
        return found
