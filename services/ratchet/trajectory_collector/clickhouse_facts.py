"""Facts in ClickHouse. Lookups use the columns that order a table, so that their cost does not grow with history."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ratchet.bus.received import Received
from ratchet.core.contract import Trajectory, Turn, decode
from ratchet.core.stores.warehouse import Texts, Warehouse, one_of
from ratchet.trajectory_collector.domain import Report, Run, possible_children, report_of
from ratchet.trajectory_collector.rows import TABLES, Event, Row, Table, call_of

M = TypeVar("M", Turn, Trajectory)

RunKey = tuple[str, str]
"""Role and trajectory id."""

BLOCK_BYTES = 16 * 1024 * 1024
"""Bodies in one insert, or of runs that are read at once. A body, or a run, that is larger stands alone."""

IDS_AT_ONCE = 1000
"""Ids in one query."""

_LAST_TURNS = """
SELECT role, trajectory_id, at, turn_index, attempt, turn_id, place, bytes, total
FROM (
    SELECT role, trajectory_id, at, turn_index, attempt, turn_id,
        row_number() OVER since AS place, sum(size) OVER since AS bytes,
        count() OVER (PARTITION BY role, trajectory_id) AS total
    FROM (
        SELECT role, trajectory_id, at, turn_index, attempt, turn_id, length(body) AS size
        FROM turns FINAL WHERE (role, trajectory_id) IN {runs:Array(Tuple(String, String))}
    )
    WINDOW since AS (
        PARTITION BY role, trajectory_id
        ORDER BY at, turn_index, attempt, turn_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
WHERE place <= {turns:UInt64} AND (place = 1 OR bytes <= {bytes:UInt64})
ORDER BY place DESC LIMIT 1 BY role, trajectory_id
"""
"""The last turn that one assembly takes of each run: its place, the bytes up to it, and how many turns the run has."""
_TURNS = """
SELECT role, trajectory_id, body FROM turns FINAL
WHERE (role, trajectory_id) IN {runs:Array(Tuple(String, String))}
ORDER BY role, trajectory_id, at, turn_index, attempt, turn_id
"""
_OLDEST_TURNS = """
SELECT role, trajectory_id, body FROM turns FINAL
WHERE role = {role:String} AND trajectory_id = {trajectory_id:String}
    AND (at, turn_index, attempt, turn_id)
        <= ({at:DateTime64(3, 'UTC')}, {turn_index:UInt32}, {attempt:UInt32}, {turn_id:String})
ORDER BY at, turn_index, attempt, turn_id
"""
_REPORTED = """
SELECT role, trajectory_id, body FROM trajectories FINAL
WHERE (role, trajectory_id) IN {runs:Array(Tuple(String, String))}
"""
_IDLE = """
WITH heard AS (
    SELECT role, trajectory_id, max(at) AS newest, max(ingested_at) AS heard_at
    FROM turns
    WHERE ingested_at >= {since:DateTime64(3)} AND trajectory_by != 'span'
    GROUP BY role, trajectory_id
    HAVING heard_at <= {before:DateTime64(3)} AND has({roles:Array(String)}, role) = {among:Bool}
        AND (heard_at, role, trajectory_id) > ({since:DateTime64(3)}, {role:String}, {id:String})
    ORDER BY heard_at, role, trajectory_id
    LIMIT {limit:UInt32}
)
SELECT h.role AS role, h.trajectory_id AS trajectory_id, h.heard_at AS heard_at,
    t.trajectory_id = '' OR h.newest > t.reported_until AS unreported
FROM heard AS h
LEFT JOIN (
    SELECT
        role,
        trajectory_id,
        max(ended_at) AS reported_until
    FROM trajectories
    WHERE (role, trajectory_id) IN (SELECT role, trajectory_id FROM heard)
    GROUP BY role, trajectory_id
) AS t ON t.role = h.role AND t.trajectory_id = h.trajectory_id
ORDER BY h.heard_at, h.role, h.trajectory_id
"""
"""Trajectories whose turns fell silent after a place in their order, and whether they are unreported: without a row, or
with one from before their last turn. The query reads only turns that were stored after that place; those of telemetry
(`span`) have ends of their own."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a message: the generation of its stream, and the sequence."""

    generation: str
    sequence: int


@dataclass(frozen=True, slots=True, order=True)
class Silence:
    """The last turn of a trajectory in a role, as a place in the order of those that fell silent."""

    heard_at: datetime
    role: str = ""
    trajectory_id: str = ""


@dataclass(frozen=True, slots=True)
class Roles:
    """Some roles, or all but some."""

    named: frozenset[str] = frozenset()
    among: bool = False
    """True: the roles that are named; false: all others."""


EVERY_ROLE = Roles()


@dataclass(frozen=True, slots=True)
class Most:
    """What one assembly takes of a run at most: its oldest turns."""

    turns: int
    bytes: int
    """Of their bodies; a first one that has more is taken too."""


MOST = Most(turns=10_000, bytes=256 * 1024 * 1024)


class Facts:
    """Reads and writes the fact tables."""

    def __init__(self, warehouse: Warehouse, most: Most = MOST) -> None:
        self._warehouse = warehouse
        self._most = most

    async def known(self, table: Table, batch: Sequence[Received[Any]]) -> dict[Event, Place]:
        """The place under which each event of a batch that is stored was stored first."""
        where, parameters = _where(table, batch)
        event = _columns_of_event(table)
        rows = await self._warehouse.rows(
            f"SELECT {event}, argMin((generation, sequence), ingested_at) AS place"  # noqa: S608 - our own table map
            f" FROM {table.name} WHERE {where} GROUP BY {event}",
            parameters,
        )
        return {_event_of(table, row): Place(*row["place"]) for row in rows}

    async def strangers(self, table: Table, batch: Sequence[Received[Any]]) -> set[int]:
        """The sequences of those messages under whose event id, and key, another event is stored."""
        if not table.own_id or not batch:
            return set()
        where, parameters = _where(table, batch)
        rows = await self._warehouse.rows(
            f"SELECT {_columns_of_event(table)}, {table.own_id} FROM {table.name} FINAL WHERE {where}",  # noqa: S608 - our own table map
            parameters,
        )
        stored = {_event_of(table, row): row[table.own_id] for row in rows}
        return {
            received.sequence
            for received in batch
            if stored.get(table.event_of(received)) not in (None, getattr(received.message, table.own_id))
        }

    async def reports(self, table: Table, batch: Sequence[Received[Any]]) -> dict[Event, Report]:
        """How the stored trajectories of these events were reported."""
        where, parameters = _where(table, batch)
        rows = await self._warehouse.rows(
            f"SELECT {_columns_of_event(table)}, body, superseded_by FROM {table.name} FINAL WHERE {where}",  # noqa: S608 - our own table map
            parameters,
        )
        return {
            _event_of(table, row): report_of(decode(row["body"].encode(), Trajectory), row["superseded_by"])
            for row in rows
        }

    async def insert(self, table: Table, rows: Sequence[Row], *, again: bool = False) -> None:
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
            if table is TABLES[Turn.TOPIC]:
                # First: a turn that is stored is not stored again after a crash, and a call may be written twice.
                await self._warehouse.insert("calls", [call_of(row) for row in block], token=None)
            # Of the whole ordered list: first and last alone would mistake one regrouped block for another.
            events = ",".join("\x1f".join(_event_of(table, row)) for row in block)
            token = None if again else hashlib.sha256(f"{table.name}:{events}".encode()).hexdigest()
            await self._warehouse.insert(table.name, block, token=token)

    async def replace(self, table: str, row: Row, by: int) -> None:
        """Replace the stored row by a newer version of it, which came with the message `by`."""
        await self._warehouse.insert(table, [row | {"superseded_by": by}], token=None)

    async def idle(
        self, after: Silence, before: datetime, limit: int, roles: Roles = EVERY_ROLE
    ) -> list[tuple[Silence, bool]]:
        """Trajectories that fell silent `after` a place and until `before`, oldest first; true: still unreported."""
        window = {
            "roles": sorted(roles.named),
            "among": roles.among,
            "since": after.heard_at,
            "role": after.role,
            "id": after.trajectory_id,
            "before": before,
            "limit": limit,
        }
        rows = await self._warehouse.rows(_IDLE, window)
        return [(Silence(row["heard_at"], row["role"], row["trajectory_id"]), bool(row["unreported"])) for row in rows]

    async def runs(self, keys: Collection[RunKey]) -> AsyncIterator[tuple[RunKey, Run]]:
        """The stored turns of these runs, oldest first, and what was assembled of each before; in any order.

        The number of queries does not depend on the number of runs, but on their size: what is in memory at once is
        bounded, unless the caller keeps it.
        """
        ends: dict[RunKey, Row] = {}
        named = list(keys)
        for start in range(0, len(named), IDS_AT_ONCE):
            limits = {"runs": named[start : start + IDS_AT_ONCE], "turns": self._most.turns, "bytes": self._most.bytes}
            ends |= {_key_of(row): row for row in await self._warehouse.rows(_LAST_TURNS, limits)}
        for key in keys:
            if key not in ends:
                yield key, Run([])
        cut = [key for key, row in ends.items() if row["place"] < row["total"]]
        whole = {key: row["bytes"] for key, row in ends.items() if row["place"] == row["total"]}
        for part in [[key] for key in cut] + _in_blocks(whole):
            for key, run in (await self._read_runs(part, ends)).items():
                yield key, run

    async def _read_runs(self, keys: Sequence[RunKey], ends: Mapping[RunKey, Row]) -> dict[RunKey, Run]:
        """Runs that are whole, or a single one."""
        last = ends[keys[0]]
        if last["place"] < last["total"]:
            limits = {name: last[name] for name in ("role", "trajectory_id", "at", "turn_index", "attempt", "turn_id")}
            rows = await self._warehouse.rows(_OLDEST_TURNS, limits)
        else:
            rows = await self._warehouse.rows(_TURNS, {"runs": keys})
        turns = await asyncio.to_thread(_decoded, rows, Turn)
        reported = await asyncio.to_thread(_decoded, await self._warehouse.rows(_REPORTED, {"runs": keys}), Trajectory)
        runs = {key: Run([]) for key in keys if key not in turns}  # erased since their last turns were looked up
        for key in turns:
            stored = next(iter(reported.get(key, ())), None)
            children = await self._children(key, turns[key]) if stored is not None else []
            runs[key] = Run(turns[key], stored, children, max(0, ends[key]["total"] - len(turns[key])))
        return runs

    async def _children(self, key: RunKey, turns: Sequence[Turn]) -> list[Trajectory]:
        """The further conversations of a run that are stored."""
        ids = await asyncio.to_thread(possible_children, *key, turns)
        bodies: list[str] = []
        for start in range(0, len(ids), IDS_AT_ONCE):
            rows = await self._warehouse.rows(
                "SELECT body FROM trajectories FINAL"
                " WHERE role = {role:String} AND trajectory_id IN {ids:Array(String)} ORDER BY trajectory_id",
                {"role": key[0], "ids": ids[start : start + IDS_AT_ONCE]},
            )
            bodies += [row["body"] for row in rows]
        return await asyncio.to_thread(lambda: [decode(body.encode(), Trajectory) for body in bodies])


def _key_of(row: Row) -> RunKey:
    return row["role"], row["trajectory_id"]


def _decoded(rows: Sequence[Row], kind: type[M]) -> dict[RunKey, list[M]]:
    """The bodies of rows as messages, by run, in the order of the rows."""
    messages: dict[RunKey, list[M]] = {}
    for row in rows:
        messages.setdefault(_key_of(row), []).append(decode(row["body"].encode(), kind))
    return messages


def _in_blocks(sizes: Mapping[RunKey, int]) -> list[Sequence[RunKey]]:
    """Runs that fit into memory together; one that is larger stands alone."""
    blocks: list[list[RunKey]] = []
    total = 0
    for key, size in sizes.items():
        total += size
        if not blocks or total > BLOCK_BYTES or len(blocks[-1]) == IDS_AT_ONCE:
            blocks.append([])
            total = size
        blocks[-1].append(key)
    return list(blocks)


def _columns_of_event(table: Table) -> str:
    return ", ".join((*table.key, "event_id"))


def _event_of(table: Table, row: Row) -> Event:
    return (*(row[name] for name in table.key), row["event_id"])


def _where(table: Table, batch: Sequence[Received[Any]]) -> tuple[str, Mapping[str, Any]]:
    """The condition that a row may belong to the batch, by primary key first: each column is that of any of it."""
    columns = (*table.key, "event_id")
    where = " AND ".join(one_of(column, column) for column in columns)
    return where, dict(zip(columns, map(Texts, zip(*map(table.event_of, batch), strict=True)), strict=True))
