"""The ledger in ClickHouse. No query reads more than one window of entries, however long the history is.

A row for each sequence, not for ranges of them: two collectors that handle a redelivered message would write ranges
that overlap, while a second row for a sequence replaces the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ratchet.core.stores.warehouse import Warehouse
from ratchet.trajectory_collector.ledger import (
    DEAD,
    DUPLICATE,
    ERASED,
    LOST,
    STORED,
    Account,
    Balance,
    Entry,
    Gap,
    ranges,
    size,
)

FOREVER = datetime(1970, 1, 1, tzinfo=UTC)
"""Before the first message that was ever stored."""

_OF_ACCOUNT = "stream = {stream:String} AND consumer = {consumer:String} AND generation = {generation:String}"
_ENTRIES = f"FROM ledger_entries WHERE {_OF_ACCOUNT} AND sequence BETWEEN {{first:UInt64}} AND {{last:UInt64}}"
_COUNTS = f"""
SELECT outcome, count() AS n
FROM (SELECT sequence, argMax(outcome, at) AS outcome {_ENTRIES} GROUP BY sequence)
GROUP BY outcome
"""  # noqa: S608 - our own conditions
_MISSING = f"""
SELECT number AS sequence FROM numbers({{first:UInt64}}, {{last:UInt64}} - {{first:UInt64}} + 1)
WHERE number NOT IN (SELECT sequence {_ENTRIES}) ORDER BY sequence
"""  # noqa: S608
_ABSENT = f"""
SELECT sequence
FROM (SELECT sequence, argMax(outcome, at) AS outcome, max(at) AS newest {_ENTRIES} GROUP BY sequence)
WHERE outcome = 'stored' AND newest > {{since:DateTime64(3)}} AND sequence NOT IN (<rows>)
    AND newest > (SELECT max(since) FROM kept_since WHERE name IN {{tables:Array(String)}}) + toIntervalDay(2)
ORDER BY sequence
"""  # noqa: S608
"""`<rows>`: the sequences in the fact tables; `since`: the row of an older entry may have expired. What has
gone is gone also where the settings now say that it stays for longer; an entry may be days younger than its row."""
_ROWS = (
    "SELECT sequence FROM {table} WHERE generation = {{generation:String}}"
    " AND sequence BETWEEN {{first:UInt64}} AND {{last:UInt64}}"
)


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of a stream: since it was made, or since it was restored from an older copy."""

    created: str
    number: int
    first: int
    """The first sequence that it accounts for."""

    @property
    def name(self) -> str:
        """The generation's name in rows and entries."""
        return f"{self.created}/{self.number}"


@dataclass(frozen=True, slots=True)
class Audited:
    """How far an account was audited, as of the last audit of any collector."""

    up_to: int = 0
    uneven: int | None = None
    """The oldest window that did not balance."""


class Ledger:
    """Reads and writes entries, windows and generations."""

    def __init__(self, warehouse: Warehouse, tables: Mapping[str, Sequence[str]]) -> None:
        """`tables`: the fact tables that hold the messages of a stream."""
        self._warehouse = warehouse
        self._tables = tables

    async def write(self, account: Account, entries: Sequence[Entry], at: datetime) -> None:
        """Write the outcomes of messages. The newest entry about a message counts."""
        rows = [
            {
                **_columns_of(account),
                "sequence": entry.sequence,
                "outcome": entry.outcome,
                "sent_at": entry.sent_at,
                "at": at,
            }
            for entry in entries
        ]
        await self._warehouse.insert("ledger_entries", rows, token=None)

    async def erase(self, account: Account, sequences: Sequence[int], at: datetime) -> None:
        """Write that messages are erased, in ascending order. The entry counts, also where an earlier one's clock was
        ahead."""
        rows = await self._warehouse.rows(
            f"SELECT max(at) AS at {_ENTRIES}",
            {**_columns_of(account), "first": sequences[0], "last": sequences[-1]},
        )
        newest = max(at, rows[0]["at"] + timedelta(milliseconds=1))
        await self.write(account, [Entry(sequence, ERASED) for sequence in sequences], newest)

    async def newest(self, account: Account) -> Entry | None:
        """The entry with the highest sequence among those that know when their message was sent."""
        rows = await self._warehouse.rows(
            "SELECT sequence, toString(outcome) AS outcome, sent_at FROM ledger_entries"  # noqa: S608
            f" WHERE {_OF_ACCOUNT} AND sent_at IS NOT NULL ORDER BY sequence DESC LIMIT 1",
            _columns_of(account),
        )
        return Entry(rows[0]["sequence"], rows[0]["outcome"], rows[0]["sent_at"]) if rows else None

    async def balance(self, account: Account, window: int, span: Gap, since: datetime) -> Balance:
        """Compare a window's entries with the sequences of `span`, and with the rows of the fact tables.

        Only entries newer than `since` must have a row: older ones may have outlived theirs.
        """
        bounds = {**_columns_of(account), "first": span.first, "last": span.last}
        counts = {row["outcome"]: row["n"] for row in await self._warehouse.rows(_COUNTS, bounds)}
        missing = await self._warehouse.rows(_MISSING, bounds) if sum(counts.values()) < len(span) else []
        union = " UNION ALL ".join(_ROWS.format(table=table) for table in self._tables[account.stream])
        asked = {**bounds, "since": since, "tables": [*self._tables[account.stream]]}
        absent = await self._warehouse.rows(_ABSENT.replace("<rows>", union), asked)
        return Balance(
            window,
            span,
            **{str(outcome): int(number) for outcome, number in counts.items()},
            missing=ranges(row["sequence"] for row in missing),
            absent=ranges(row["sequence"] for row in absent),
        )

    async def duplicates(self, account: Account, span: Gap) -> list[Gap]:
        """Messages whose event an earlier message had reported: they may have replaced its row."""
        rows = await self._warehouse.rows(
            f"SELECT DISTINCT sequence {_ENTRIES} AND outcome = 'duplicate' ORDER BY sequence LIMIT 10000",
            {**_columns_of(account), "first": span.first, "last": span.last},
        )
        return ranges(row["sequence"] for row in rows)

    async def fold(self, account: Account, balance: Balance, at: datetime) -> None:
        """Write a window's balance."""
        row = {
            **_columns_of(account),
            "window": balance.window,
            "up_to": balance.span.last,
            **{outcome: getattr(balance, outcome) for outcome in (STORED, DEAD, DUPLICATE, ERASED, LOST)},
            "missing": size(balance.missing),
            "absent": size(balance.absent),
            "at": at,
        }
        await self._warehouse.insert("ledger_windows", [row], token=None)

    async def audited(self, account: Account) -> Audited:
        """How far any collector audited the account: the next audit goes on from there."""
        rows = await self._warehouse.rows(
            "SELECT max(up_to) AS up_to, minIf(window, missing > 0 OR absent > 0) AS uneven,"  # noqa: S608
            f" countIf(missing > 0 OR absent > 0) AS number FROM ledger_windows FINAL WHERE {_OF_ACCOUNT}",
            _columns_of(account),
        )
        return Audited(rows[0]["up_to"], rows[0]["uneven"] if rows[0]["number"] else None)

    async def oldest(self, account: Account, since: datetime) -> int | None:
        """The oldest window whose entries are all newer than `since`."""
        rows = await self._warehouse.rows(
            f"SELECT min(window) AS window, count() AS number FROM ledger_windows FINAL WHERE {_OF_ACCOUNT}"  # noqa: S608
            " AND at > {since:DateTime64(3)}",
            {**_columns_of(account), "since": since},
        )
        return rows[0]["window"] if rows[0]["number"] else None

    async def generation(self, stream: str, created: str) -> Generation | None:
        """The newest generation of a stream that was made at `created`."""
        rows = await self._warehouse.rows(
            "SELECT number, first_sequence FROM stream_generations FINAL"
            " WHERE stream = {stream:String} AND created = {created:String} ORDER BY number DESC LIMIT 1",
            {"stream": stream, "created": created},
        )
        return Generation(created, rows[0]["number"], rows[0]["first_sequence"]) if rows else None

    async def has_generation(self, stream: str) -> bool:
        """Whether the ledger knows any generation of the stream."""
        where = "stream = {stream:String} LIMIT 1"
        return bool(await self._warehouse.rows(f"SELECT 1 FROM stream_generations WHERE {where}", {"stream": stream}))  # noqa: S608

    async def begin(self, stream: str, generation: Generation, at: datetime) -> None:
        """Write that a generation began. Every collector that notices it writes the same."""
        row = {
            "stream": stream,
            "created": generation.created,
            "number": generation.number,
            "first_sequence": generation.first,
            "at": at,
        }
        await self._warehouse.insert("stream_generations", [row], token=None)


def _columns_of(account: Account) -> dict[str, Any]:
    return {"stream": account.stream, "consumer": account.consumer, "generation": account.generation}
