"""Reads the spans of traces, and what the gateway has recorded of them itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.core.contract import decode
from ratchet.core.contract.spans import Spans, run_id
from ratchet.core.contract.traces import BY_SPAN
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.trajectory_collector.traces.closing import Heard

TraceKey = tuple[str, str]
"""Role and trace id."""
TRACE_BYTES = 64 * 1024 * 1024
TRACE_SPANS = 20_000
"""What one trajectory is made of at most: the parts that came first. An agent's longest runs have some thousands."""
AT_ONCE = 50_000
"""Parts that one query returns."""
_HEARD = """
SELECT role, trace_id, ingested_at, event_id, span_count, has_root, has_entry, call_count, evaluation_count
FROM spans FINAL
WHERE <which>
ORDER BY ingested_at, event_id
LIMIT {limit:UInt32}
"""
_NEW = "(ingested_at, event_id) > ({after:DateTime64(3)}, {event:String}) AND ingested_at < {until:DateTime64(3)}"
_OLD = "(role, trace_id) IN {traces:Array(Tuple(String, String))} AND ingested_at < {until:DateTime64(3)}"
_PARTS = """
SELECT body, place, bytes, total
FROM (
    SELECT body, ingested_at, event_id,
        sum(span_count) OVER since AS place, sum(length(body)) OVER since AS bytes, sum(span_count) OVER () AS total
    FROM spans FINAL
    WHERE role = {role:String} AND trace_id = {trace:String} AND ingested_at <= {until:DateTime64(3)}
    WINDOW since AS (ORDER BY ingested_at, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE place <= {spans:UInt64} AND bytes <= {bytes:UInt64}
ORDER BY place, bytes
"""
_RECORDED = """
SELECT JSONExtractString(body, 'trace', 'span_id') AS span_id, JSONExtractString(body, 'provider', 'id') AS answer
FROM turns
WHERE trace_id = {trace:String} AND trajectory_by != {ours:String} AND ingested_at BETWEEN {since:DateTime64(3)}
    AND {until:DateTime64(3)}
"""
_PUBLISHED = """
SELECT role, trajectory_id, max(ingested_at) AS at FROM trajectories
WHERE (role, trajectory_id) IN {runs:Array(Tuple(String, String))} GROUP BY role, trajectory_id
"""
AROUND = timedelta(hours=1)
"""Turns are stored a moment after their call; its span may come first."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A part in the order in which parts were stored."""

    at: datetime
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What came of a trace."""

    batches: Sequence[Spans]
    left_out: int
    """Spans beyond what one trajectory is made of."""


class StoredSpans:
    """The spans in ClickHouse."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def heard(self, after: Place, until: datetime) -> list[tuple[Place, TraceKey, Heard]]:
        """The next parts after a place, in their order, of all traces."""
        window = {"after": after.at, "event": after.event_id, "until": until, "limit": AT_ONCE}
        return [_heard(row) for row in await self._warehouse.rows(_HEARD.replace("<which>", _NEW), window)]

    async def history(self, traces: Collection[TraceKey], until: datetime) -> list[tuple[Place, TraceKey, Heard]]:
        """All parts of some traces."""
        window = {"traces": sorted(traces), "until": until, "limit": 10 * AT_ONCE}
        return [_heard(row) for row in await self._warehouse.rows(_HEARD.replace("<which>", _OLD), window)]

    async def parts(self, trace: TraceKey, until: datetime) -> Parts:
        """What came of a trace until an instant, the first parts first."""
        limits = {
            "role": trace[0],
            "trace": trace[1],
            "until": until,
            "spans": TRACE_SPANS,
            "bytes": TRACE_BYTES,
        }
        rows = await self._warehouse.rows(_PARTS, limits)
        batches = await asyncio.to_thread(lambda: [decode(row["body"].encode(), Spans) for row in rows])
        return Parts(batches, rows[-1]["total"] - rows[-1]["place"] if rows else 0)

    async def recorded(self, trace_id: str, since: datetime, until: datetime) -> tuple[frozenset[str], frozenset[str]]:
        """The span ids under which the gateway got calls of a trace, and the ids of their answers."""
        window = {"trace": trace_id, "ours": BY_SPAN, "since": since - AROUND, "until": until + AROUND}
        rows = await self._warehouse.rows(_RECORDED, window)
        return frozenset(row["span_id"] for row in rows), frozenset(row["answer"] for row in rows if row["answer"])

    async def published(self, traces: Collection[TraceKey]) -> Mapping[TraceKey, datetime]:
        """When the trajectories of these traces were stored last, of those that have one."""
        runs = {(role, run_id(trace_id)): (role, trace_id) for role, trace_id in traces}
        rows = await self._warehouse.rows(_PUBLISHED, {"runs": sorted(runs)})
        return {runs[row["role"], row["trajectory_id"]]: row["at"] for row in rows}


def _heard(row: Row) -> tuple[Place, TraceKey, Heard]:
    heard = Heard(
        at=row["ingested_at"],
        spans=row["span_count"],
        has_root=row["has_root"],
        has_entry=row["has_entry"],
        calls=row["call_count"],
        evaluations=row["evaluation_count"],
    )
    return Place(row["ingested_at"], row["event_id"]), (row["role"], row["trace_id"]), heard
