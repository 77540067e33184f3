"""How long ClickHouse keeps rows, by table and role: the age at which they expire, or go to the archive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

import structlog

from ratchet.core.datasets.archives import ARCHIVED
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.trajectory_collector.rows import TABLES
from ratchet.trajectory_collector.settings import MOST_DAYS, OTHERS, Settings

log = structlog.get_logger()

LEDGER_TTL_DAYS = 400
"""Entries of the ledger are removed after this long (their windows stay): longer than any stream keeps messages."""
RETENTION_INTERVAL_S = 3600.0
"""How often the collector compares the tables with its settings: a table may have been restored from a backup."""
SPANS_TTL_DAYS = 30
"""Spans have become turns and trajectories within days, and hold the same texts."""

Days = Mapping[str, int]
"""Days by role, with `OTHERS`; 0: for ever."""


def days_by_table(settings: Settings) -> dict[str, Days]:
    """How long the rows of each table stay in ClickHouse."""
    kept = settings.days_kept
    facts = {OTHERS: settings.facts_ttl_days}
    hot = {role: days.hot for role, days in kept.items()}
    whole = {role: days.whole for role, days in kept.items()}
    labels = {role: days.labels for role, days in kept.items()}
    spans = {role: min(SPANS_TTL_DAYS, days or SPANS_TTL_DAYS) for role, days in hot.items()}
    own = {
        **dict.fromkeys(ARCHIVED, hot),
        **dict.fromkeys(("starts", "trajectory_ends", "workflow_executions"), whole),
        **dict.fromkeys(("rewards", "feedback", "preferences"), labels),
        "spans": spans,
    }
    return {name: own.get(name, facts) for name in (*(table.name for table in TABLES.values()), "calls")}


def least_age(days: Mapping[str, Days], tables: Iterable[str]) -> timedelta | None:
    """The age up to which surely no row of these tables has gone; None: rows never go."""
    finite = [number for table in tables for number in days[table].values() if number]
    return timedelta(days=min(finite)) if finite else None


class Retention:
    """Gives every table the age in the settings, and leaves tables alone that have it. The archiver moves the rows of
    `ARCHIVED` tables itself: they have none."""

    def __init__(self, warehouse: Warehouse, settings: Settings) -> None:
        self._warehouse = warehouse
        days = days_by_table(settings)
        self._ages = {
            **{name: ("ingested_at", {} if name in ARCHIVED else days[name]) for name in days},
            "ledger_entries": ("at", {OTHERS: LEDGER_TTL_DAYS}),
        }

    async def tick(self) -> None:
        """Compare and change. Raises `Unavailable`."""
        rows = await self._warehouse.rows(
            "SELECT name, engine_full, now64(3, 'UTC') AS now FROM system.tables WHERE database = currentDatabase()"
            " AND name IN {names:Array(String)}",
            {"names": list(self._ages)},
        )
        for row in rows:
            column, days = self._ages[row["name"]]
            expected = expression(column, days)
            ttl = re.search(r" TTL (.*?)(?: SETTINGS |$)", row["engine_full"])
            if expected == (ttl[1] if ttl else ""):
                continue
            if ttl:
                await self._note_expired(row, ttl[1])
            # Rows that are too old already go with the next merges, not all at once.
            await self._warehouse.command(
                f"ALTER TABLE {row['name']} {f'MODIFY TTL {expected}' if expected else 'REMOVE TTL'}"
                " SETTINGS materialize_ttl_after_modify = 0"
            )
            log.info("retention changed", table=row["name"], days=dict(days))

    async def _note_expired(self, row: Row, ttl: str) -> None:
        """Note which rows may have expired under the days of before: with longer ones the audit would miss them."""
        days = min(int(number) for number in re.findall(r"\d+", re.sub("'.*?'", "", ttl)))
        since = row["now"] - timedelta(days=days)
        await self._warehouse.insert("kept_since", [{"name": row["name"], "since": since}], token=None)


def days_expression(days: Days) -> str:
    """The days of a row's role, as ClickHouse writes it down."""
    others = str(days[OTHERS] or MOST_DAYS)
    cases = [f"role = '{role}', {days[role] or MOST_DAYS}" for role in sorted(days) if role != OTHERS]
    return f"multiIf({', '.join(cases)}, {others})" if cases else others


def expression(column: str, days: Days) -> str:
    """The instant at which a row expires; empty where none does."""
    return f"toDateTime({column}) + toIntervalDay({days_expression(days)})" if any(days.values()) else ""
