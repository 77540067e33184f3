"""What ClickHouse holds about trajectories: themselves, their rewards, and what people said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from ratchet.bus.message import Message
from ratchet.core.contract import Feedback, Reward, Trajectory, decode
from ratchet.core.stores.history import History
from ratchet.core.stores.warehouse import Row, Texts, Warehouse, one_of
from ratchet.reward_computer.domain.parents import Link

M = TypeVar("M", bound=Message)

Key = tuple[str, str]
"""Role and trajectory id. Feedback under another role is not about this trajectory: permissions are given by role."""


Assessments = tuple[Mapping[Key, Sequence[Reward]], Mapping[Key, Sequence[Feedback]]]
"""The rewards of trajectories, and the feedback on them."""

_INSTANTS = {"trajectories": "ended_at", "rewards": "at", "feedback": "at"}
"""The column of each table that says when."""

Event = tuple[str, str, str]
"""Role, trajectory id and event id: publishers that number their events give one id to many."""


_OF_KEYS = f"{one_of('role', 'roles')} AND {one_of('trajectory_id', 'ids')}"
"""Rows of some trajectories, by primary key: also of one under the role of another one."""


_LINKED = {"itself": "trajectory_id", "its parent": "coalesce(parent_trajectory_id, '')"}
CHILDREN = 1000
"""Most trajectories that one reward is shared with; of more, the first by id."""


class Facts:
    """Reads. A query sees everything that was stored before it began."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def stored(self, table: str, events: Collection[Event]) -> set[Event]:
        """Which of these events are stored in `table`. What is read does not grow with the table."""
        rows = await self._warehouse.rows(
            f"SELECT role, trajectory_id, event_id FROM {table} WHERE {_OF_KEYS} AND {one_of('event_id', 'events')}",  # noqa: S608 - our own table names
            _keys((role, trajectory_id) for role, trajectory_id, _ in events)
            | {"events": Texts(event_id for _, _, event_id in events)},
        )
        return {(row["role"], row["trajectory_id"], row["event_id"]) for row in rows} & set(events)

    async def outcomes(self, stream: str, sequences: Collection[int]) -> Mapping[int, str]:
        """What the ledger says of these messages; those that it does not know are left out."""
        return await History(self._warehouse).outcomes(stream, sequences)

    async def trajectories(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Trajectory]]:
        """The stored trajectories."""
        return await self._messages("trajectories", Trajectory, keys)

    async def links(self, named: Literal["itself", "its parent"], ids: Collection[str]) -> Sequence[Link]:
        """The trajectories of all roles of which one of these ids names the trajectory itself, or its parent."""
        rows = await self._warehouse.rows(
            "SELECT role, trajectory_id, coalesce(parent_trajectory_id, '') AS parent_id, user_ref"  # noqa: S608 - our own columns
            f" FROM trajectories WHERE {one_of(_LINKED[named], 'ids')}"
            f" ORDER BY trajectory_id, role LIMIT {CHILDREN} BY parent_id",
            {"ids": Texts(ids)},
        )
        return [Link(**row) for row in rows]

    async def places(self, keys: Iterable[Key]) -> Mapping[Key, int]:
        """The sequences under which trajectories were first stored."""
        rows = await self._warehouse.rows(
            f"SELECT role, trajectory_id, min(sequence) AS sequence FROM trajectories WHERE {_OF_KEYS}"  # noqa: S608 - our own condition
            " GROUP BY role, trajectory_id",
            _keys(keys),
        )
        return {(row["role"], row["trajectory_id"]): row["sequence"] for row in rows}

    async def rewards(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Reward]]:
        """All revisions under all reward functions."""
        return await self._messages("rewards", Reward, keys)

    async def feedback(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Feedback]]:
        """All feedback, none of it given later than it was stored."""
        return _opinions(await self._rows(["feedback"], keys))

    async def assessments(self, keys: Iterable[Key]) -> Assessments:
        """`rewards` and `feedback`, by one query: each costs as much for a few rows as for a batch."""
        rows = await self._rows(["rewards", "feedback"], keys)
        rewards = [row for row in rows if row["of"] == "rewards"]
        return _decoded(rewards, Reward), _opinions(row for row in rows if row["of"] == "feedback")

    async def _messages(self, table: str, kind: type[M], keys: Iterable[Key]) -> Mapping[Key, Sequence[M]]:
        return _decoded(await self._rows([table], keys), kind)

    async def _rows(self, tables: Sequence[str], keys: Iterable[Key]) -> Sequence[Row]:
        union = " UNION ALL ".join(
            f"SELECT '{table}' AS of, role, trajectory_id, {_INSTANTS[table]} AS at, body, ingested_at, sequence"  # noqa: S608 - our own table names
            f" FROM {table} FINAL WHERE {_OF_KEYS}"
            for table in tables
        )
        return await self._warehouse.rows(
            f"SELECT of, role, trajectory_id, at, body FROM ({union}) ORDER BY ingested_at, sequence",  # noqa: S608 - our own table names
            _keys(keys),
        )


def _keys(keys: Iterable[Key]) -> dict[str, Texts]:
    """The parameters of `_OF_KEYS`."""
    known = set(keys)
    return {"roles": Texts(role for role, _ in known), "ids": Texts(trajectory_id for _, trajectory_id in known)}


def _decoded(rows: Iterable[Row], kind: type[M]) -> Mapping[Key, Sequence[M]]:
    return _by_trajectory((row, decode(row["body"].encode(), kind)) for row in rows)


def _opinions(rows: Iterable[Row]) -> Mapping[Key, Sequence[Feedback]]:
    return _by_trajectory((row, replace(decode(row["body"].encode(), Feedback), at=row["at"])) for row in rows)


def _by_trajectory(messages: Iterable[tuple[Row, M]]) -> Mapping[Key, Sequence[M]]:
    by_trajectory: defaultdict[Key, list[M]] = defaultdict(list)
    for row, message in messages:
        by_trajectory[row["role"], row["trajectory_id"]].append(message)
    return by_trajectory
