"""What an erasure stands for in the history: the table `erased`, and the rows of all tables that have its ids.

The table is the tombstone. It keeps every id that an erasure covers, also after their rows are gone, so that a step
that a crash cut off begins anew, and what comes late is recognised.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ratchet.core.contract.erasure import AGENT, SESSION, TRAJECTORY, USER, Erasure
from ratchet.core.errors import WarehouseUnavailable
from ratchet.core.rules.erasing import CLOCKS
from ratchet.core.stores.warehouse import Texts, Warehouse, one_of

KEYS: Mapping[str, tuple[str, ...]] = {
    "trajectories": ("trajectory_id",),
    "turns": ("trajectory_id",),
    "trajectory_ends": ("trajectory_id",),
    "starts": ("trajectory_id",),
    "spans": ("trace_id",),
    "rewards": ("trajectory_id",),
    "proposed_rewards": ("trajectory_id",),
    "feedback": ("trajectory_id", "feedback_id"),
    "preferences": ("preference_id",),
    "workflow_executions": ("workflow_id",),
}
"""The tables that can hold a person's text, with the columns that have ids of `erased`."""

_BODIES: Mapping[str, tuple[str, str]] = {
    USER: ("user_ref", "user_ref"),
    SESSION: ("session_id", "session"),
    AGENT: ("agent_id", "agent"),
}
"""By kind: the member of a message, and that of a span."""
_OF = "(SELECT role, id FROM erased WHERE erasure_id = {erasure:String})"
_FOLLOWS = f"""
SELECT role, trajectory_id AS id FROM trajectories
    WHERE (role, coalesce(parent_trajectory_id, '')) IN {_OF} OR (role, recorded_as) IN {_OF}
UNION ALL SELECT role, recorded_as AS id FROM trajectories WHERE (role, trajectory_id) IN {_OF}
UNION ALL SELECT role, trace_id AS id FROM turns WHERE trace_id != '' AND (role, trajectory_id) IN {_OF}
UNION ALL SELECT role, trajectory_id AS id FROM turns WHERE trajectory_by = 'span' AND (role, trace_id) IN {_OF}
UNION ALL SELECT role, preference_id AS id FROM preferences
    WHERE (role, JSONExtractString(body, 'chosen_trajectory_id')) IN {_OF}
    OR (role, JSONExtractString(body, 'rejected_trajectory_id')) IN {_OF}
"""  # noqa: S608 - our own names
"""What belongs to what is listed: the conversations of its run, sub-agents, its traces, pairs with its answers."""
_INSERT = f"""
INSERT INTO erased (erasure_id, role, id, at)
SELECT DISTINCT {{erasure:String}}, role, id, now64(3, 'UTC') FROM (<theirs>)
WHERE ({{role:String}} = '' OR role = {{role:String}}) AND (role, id) NOT IN {_OF}
"""  # noqa: S608
Place = tuple[str, int]
"""Generation of a stream, and sequence in it."""
ROUNDS = 64
"""Of following what belongs to what: no agent has sub-agents so deep."""
POLL_S = 0.5


def direct(kind: str) -> Iterator[str]:
    """Queries for `role` and `id` of what names the erasure's ref itself."""
    if kind == TRAJECTORY:
        for table in ("trajectories", "turns", "trajectory_ends", "starts", "rewards", "feedback"):
            yield f"SELECT role, trajectory_id AS id FROM {table} WHERE trajectory_id = {{ref:String}}"  # noqa: S608
        yield "SELECT role, workflow_id AS id FROM workflow_executions WHERE workflow_id = {ref:String}"
        return
    member, of_span = _BODIES[kind]
    past = "<= {until:DateTime64(3, 'UTC')}"
    yield f"SELECT role, trajectory_id AS id FROM trajectories WHERE {member} = {{ref:String}} AND started_at {past}"  # noqa: S608
    for table, key in (
        ("turns", "trajectory_id"),
        ("trajectory_ends", "trajectory_id"),
        ("workflow_executions", "workflow_id"),
    ):
        yield (
            f"SELECT role, {key} AS id FROM {table}"  # noqa: S608
            f" WHERE JSONExtractString(body, '{member}') = {{ref:String}} AND at {past}"
        )
    yield (
        "SELECT role, trace_id AS id FROM spans WHERE arrayExists("  # noqa: S608
        f"span -> JSONExtractString(span, '{of_span}') = {{ref:String}} AND"
        f" parseDateTime64BestEffortOrZero(JSONExtractString(span, 'started_at'), 3, 'UTC') {past},"
        " JSONExtractArrayRaw(body, 'spans'))"
    )
    if kind == USER:  # what they said of others' trajectories
        yield (
            "SELECT role, feedback_id AS id FROM feedback"  # noqa: S608
            f" WHERE JSONExtractString(body, 'user_ref') = {{ref:String}} AND at {past}"
        )


@dataclass(frozen=True)
class Erased:
    """The table, and the rows that it is about. Raises `Unavailable`."""

    warehouse: Warehouse

    async def list_ids(self, erasure: Erasure) -> int:
        """List all ids that the erasure covers, those of before included; returns how many there are."""
        await self._insert(erasure, " UNION ALL ".join(direct(erasure.kind)))
        listed = await self.count(erasure.erasure_id)
        for _ in range(ROUNDS):
            await self._insert(erasure, _FOLLOWS)
            before, listed = listed, await self.count(erasure.erasure_id)
            if listed == before:
                break
        return listed

    async def preview(self, erasure: Erasure) -> int:
        """How many trajectories name the ref themselves. Nothing is written."""
        theirs = " UNION ALL ".join(direct(erasure.kind))
        rows = await self.warehouse.rows(
            f"SELECT uniqExact(role, id) AS n FROM ({theirs})"  # noqa: S608
            " WHERE {role:String} = '' OR role = {role:String}",
            _parameters(erasure),
        )
        return int(rows[0]["n"])

    async def count(self, erasure_id: str) -> int:
        """How many ids are listed of an erasure."""
        rows = await self.warehouse.rows(f"SELECT uniqExact(role, id) AS n FROM {_OF}", {"erasure": erasure_id})  # noqa: S608
        return int(rows[0]["n"])

    async def counts(self) -> dict[str, int]:
        """By erasure, how many ids are listed."""
        rows = await self.warehouse.rows("SELECT erasure_id, uniqExact(role, id) AS n FROM erased GROUP BY erasure_id")
        return {row["erasure_id"]: int(row["n"]) for row in rows}

    async def ids(self, erasure_id: str) -> set[tuple[str, str]]:
        """Roles and ids that an erasure covers."""
        query = f"SELECT DISTINCT role, id FROM {_OF}"  # noqa: S608
        return {(row["role"], row["id"]) for row in await self.warehouse.rows(query, {"erasure": erasure_id})}

    async def among(self, ids: Collection[str]) -> set[tuple[str, str]]:
        """Those of some ids that are erased, with their roles."""
        if not ids:
            return set()
        query = f"SELECT DISTINCT role, id FROM erased WHERE {one_of('id', 'ids')}"  # noqa: S608
        return {(row["role"], row["id"]) for row in await self.warehouse.rows(query, {"ids": Texts(ids)})}

    async def add(self, erasure_id: str, pairs: Collection[tuple[str, str]], at: datetime) -> None:
        """List further ids, with their roles."""
        rows = [
            {"erasure_id": erasure_id, "role": role, "id": erased_id, "at": at} for role, erased_id in sorted(pairs)
        ]
        await self.warehouse.insert("erased", rows, token=None)

    async def places(self, erasure_id: str, table: str, after: Place, limit: int) -> list[Place]:
        """Where rows of a table came from, in order: generations of streams with sequences, those `after` one."""
        theirs = " OR ".join(f"(role, {column}) IN {_OF}" for column in KEYS[table])
        rows = await self.warehouse.rows(
            f"SELECT DISTINCT generation, sequence FROM {table} WHERE ({theirs})"  # noqa: S608
            " AND (generation, sequence) > ({generation:String}, {sequence:UInt64})"
            " ORDER BY generation, sequence LIMIT {limit:UInt32}",
            {"erasure": erasure_id, "generation": after[0], "sequence": after[1], "limit": limit},
        )
        return [(row["generation"], row["sequence"]) for row in rows]

    async def remove_rows(self, erasure_ids: Sequence[str]) -> dict[str, Counter[str]]:
        """Remove the rows of some erasures, each table rewritten once; returns how many they were, by erasure and by
        table. Their files go later: `has_remains`."""
        removed: dict[str, Counter[str]] = {erasure_id: Counter() for erasure_id in erasure_ids}
        for table, columns in KEYS.items():
            theirs = " OR ".join(f"(role, {column}) IN {_OF}" for column in columns)
            count = f"SELECT count() AS n FROM {table} WHERE {theirs}"  # noqa: S608
            for erasure_id in erasure_ids:
                rows = await self.warehouse.rows(count, {"erasure": erasure_id})
                removed[erasure_id] += Counter({table: int(rows[0]["n"])})
            if named := [str(UUID(erasure_id)) for erasure_id in erasure_ids if removed[erasure_id][table]]:
                # In words, for ClickHouse keeps the statement; '' makes a list of one.
                all_theirs = theirs.replace("= {erasure:String}", f"IN {(*named, '')}")
                await self.warehouse.command(f"ALTER TABLE {table} DELETE WHERE {all_theirs}")
        await self._until_mutated()
        return removed

    async def has_remains(self, erasure: Erasure) -> bool:
        """Whether files are left of its rows, which are removed: ClickHouse keeps a part for minutes after its end.

        Those of later removals do not count, so that erasures without a pause hold up none.
        """
        query = (
            "SELECT count() AS n FROM system.parts AS p INNER JOIN ("  # noqa: S608
            " SELECT table, maxIf(number, position(command, {erasure:String}) > 0) AS own,"
            f" multiIf(own > 0, own, {one_of('table', 'tables')}, max(number), 0) AS version"  # a hundred are kept
            " FROM (SELECT *, toInt64(extract(mutation_id, '[0-9]+')) AS number FROM system.mutations"
            " WHERE database = currentDatabase()) GROUP BY table) AS m ON p.table = m.table"
            " WHERE p.database = currentDatabase() AND NOT p.active AND p.data_version < m.version"
        )
        named = {"erasure": erasure.erasure_id, "tables": Texts(erasure.removed)}
        rows = await self.warehouse.rows(query, named)
        return bool(rows[0]["n"])

    async def _until_mutated(self) -> None:
        """Until the tables are rewritten. Raises `WarehouseUnavailable` where ClickHouse cannot: it goes on trying."""
        while True:
            rows = await self.warehouse.rows(
                "SELECT table, any(latest_fail_reason) AS reason FROM system.mutations"
                " WHERE database = currentDatabase() AND NOT is_done GROUP BY table"
            )
            if failed := [f"{row['table']}: {row['reason']}" for row in rows if row["reason"]]:
                raise WarehouseUnavailable(f"ClickHouse cannot remove rows yet: {'; '.join(failed)}")
            if not rows:
                return
            await asyncio.sleep(POLL_S)

    async def _insert(self, erasure: Erasure, theirs: str) -> None:
        await self.warehouse.command(_INSERT.replace("<theirs>", theirs), _parameters(erasure))


def _parameters(erasure: Erasure) -> dict[str, Any]:
    """`Any`: of the driver."""
    until = erasure.asked_at + CLOCKS
    return {"erasure": erasure.erasure_id, "ref": erasure.ref, "role": erasure.role or "", "until": until}
